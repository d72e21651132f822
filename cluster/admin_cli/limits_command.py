"""`headrace limits`: what a tenant may take, how it stands, and more budget for it."""

from __future__ import annotations

import re
from typing import Any

import click

from cluster.admin_cli.session import ID, Session, asks_the_cluster

_WHOLE = re.compile("[0-9]{1,20}")


class _Micro(click.ParamType[Any]):
    """Micro-units, as an int."""

    name = "micro-units"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not _WHOLE.fullmatch(text) or int(text) < 1:
            self.fail(f"{text!r} is no number of micro-units: give 1500000 for 1.5 units", param, ctx)
        return int(text)


@click.command()
@click.argument("tenant_id", type=ID)
@click.option(
    "--key", "key_id", type=ID, help="With the own limits of this key; to adjust: this key's budget."
)
@click.option(
    "--top-up",
    "amount",
    type=_Micro(),
    metavar="MICRO",
    help="Add micro-units to the running --window.",
)
@click.option("--reset", is_flag=True, help="Forgive what was spent in the running --window.")
@click.option("--window", type=click.Choice(["day", "month"]), help="Of --top-up and --reset; in UTC.")
@asks_the_cluster
def limits(
    session: Session, tenant_id: str, key_id: str | None, amount: int | None, reset: bool, window: str | None
) -> None:
    """A tenant's limits as they stand; with --top-up or --reset, after that.

    Money is given in micro-units (1 unit = 1000000); tables show both. Two top-ups add up. A reset makes
    all of the budget available again, top-ups included; what runs stays reserved, usage stays as it is, and
    a second reset changes nothing. With offline=serve
    about 1 % of a budget counts as spent for each gateway that serves the tenant: purses for when the record
    is away, given back later.

    \b
    Examples:
      headrace limits acme
      headrace limits acme --top-up 2500000 --window day
      headrace limits acme --reset --window month
    """
    if amount is not None and reset:
        raise click.UsageError("give --top-up or --reset, not both")
    if (amount is not None or reset) != (window is not None):
        raise click.UsageError("--window goes with --top-up or --reset, and these need it")
    body = {"window": window} if key_id is None else {"window": window, "key_id": key_id}
    path = f"/limits/{tenant_id}"
    if amount is not None:
        told = session.client.create(f"{path}/top-up", {**body, "amount": amount})
    elif reset:
        told = session.client.create(f"{path}/reset", body)
    else:
        told = session.client.get(path, key_id=key_id)
    session.show(told, lambda: _print(told))


def _warning(limit: dict[str, Any]) -> str:
    if not limit["remaining"]:
        return "used up"
    return "nearly used up" if limit["soft"] else ""


def _print(told: dict[str, Any]) -> None:
    from cluster.admin_cli.tables import print_fields, print_rows, shown_field

    print_fields({"tenant": told["tenant_id"], "model": told["model"], **told["terms"]})
    rows = [
        (
            limit["kind"],
            limit["key_id"] or "",
            shown_field(limit["kind"], limit["limit"]),
            shown_field(limit["kind"], limit["remaining"]),
            f"{limit['reset_s']:.0f} s",
            _warning(limit),
        )
        for limit in told["limits"]
    ]
    print_rows(("limit", "of key", "at most", "left", "whole again in", ""), rows)
