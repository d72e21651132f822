"""`headrace usage`: what tenants used, by day, model and key."""

from __future__ import annotations

import csv
import importlib
import sys
from typing import Any

import click

from cluster.admin_cli.session import ID, Session, asks_the_cluster

_TENANTS_A_PAGE = 100
_DIMENSIONS = ("tenant_id", "day", "model", "key_id")
_NUMBERS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")
_WITHOUT_DELETED = (
    "Deleted tenants are not in it: --tenant ID tells what one used, `headrace audit` names them, and "
    "`headrace usage export` has them all."
)
_SUBCOMMANDS = {"export": "cluster.ledger_cli.export_command:export"}


class _WithSubcommands(click.Group):
    """A command of its own; what is below it is imported when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        module, name = _SUBCOMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=_WithSubcommands, invoke_without_command=True)
@click.option("--tenant", type=ID, help="Of this tenant only, also if it was deleted since.")
@click.option("--from", "first_day", metavar="DAY", help="In UTC, as 2026-11-01; default: the month's first.")
@click.option("--to", "last_day", metavar="DAY", help="Included; default: today.")
@click.option("--by", default="day", show_default=True, help="What rows tell apart: of day,model,key.")
@click.option("--csv", "as_csv", is_flag=True, help="Rows for a spreadsheet; cost in micro-units.")
@asks_the_cluster
def usage(
    session: Session,
    tenant: str | None,
    first_day: str | None,
    last_day: str | None,
    by: str,
    as_csv: bool,
) -> None:
    """What tenants used and what it cost; tables show micro-units and units of 1000000.

    Without --tenant deleted tenants are left out: --tenant still tells what one of them used, `headrace
    audit` names them (tenant.delete), and `headrace usage export` has everybody's requests.

    \b
    Examples:
      headrace usage --tenant acme --from 2026-11-01 --to 2026-11-30 --by day,model,key
      headrace usage --by model --csv
    """
    query = {"tenant_id": tenant, "from": first_day, "to": last_day, "by": by}
    pages = list(session.client.pages("/usage", size=_TENANTS_A_PAGE, **query))
    rows = [row for page in pages for row in page["data"]]
    told = {
        "object": "usage",
        "from": pages[-1]["from"],
        "to": pages[-1]["to"],
        "data": rows,
        "omits_deleted": tenant is None,
    }
    session.show(told, lambda: _print_csv(rows) if as_csv else _print(told))
    if tenant is None:
        click.echo(_WITHOUT_DELETED, err=True)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Dimensions that tell rows apart, and the numbers."""
    return [name for name in _DIMENSIONS if any(row[name] is not None for row in rows)] + list(_NUMBERS)


def _print_csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, _columns(rows), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print(told: dict[str, Any]) -> None:
    from cluster.admin_cli.tables import print_rows, shown_field

    rows = told["data"]
    click.echo(f"From {told['from']} to {told['to']}, in UTC" + ("" if rows else ": nothing was used"))
    if not rows:
        return
    columns = _columns(rows)
    total = {name: sum(row[name] for row in rows) for name in _NUMBERS}
    lines = [*rows, {**dict.fromkeys(_DIMENSIONS, ""), **total, columns[0]: "in all"}]
    print_rows(
        columns,
        [
            [shown_field(name, line[name]) if name == "cost" else line[name] for name in columns]
            for line in lines
        ],
    )
