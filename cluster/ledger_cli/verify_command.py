"""`headrace ledger verify`: the books against everything else that counts."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.admin_cli.session import asks_the_cluster
from cluster.ledger_cli.options import DAY, of_state_dirs

if TYPE_CHECKING:
    from cluster.admin_cli.session import Session
    from cluster.ledger_cli.comparison import ComparisonRow, Verdict

RETRY_S = 0.5
FETCH_TIMEOUT_S = 5.0
TENANTS_A_PAGE = 100


@click.command()
@of_state_dirs
@click.option(
    "--from", "first", type=DAY, metavar="DAY", help="First UTC day, as 2026-11-30; default: of this month."
)
@click.option("--to", "last", type=DAY, metavar="DAY", help="Last UTC day; default: today.")
@click.option(
    "--wait", "wait_s", type=float, default=10.0, show_default=True,
    help="Seconds for what is still on its way to arrive.",
)  # fmt: skip
@asks_the_cluster
def verify(
    session: Session,
    state_dirs: tuple[Path, ...],
    first: datetime | None,
    last: datetime | None,
    wait_s: float,
) -> None:
    """Prove that engine = ledger = usage = metrics.

    The spools, each request once, are compared with the usage of every tenant and
    day, with the counters of every living gateway, and with the tokens that the
    replicas made. Exit status: 0 all is equal or listed as in doubt, 1 a difference
    that nothing explains, 2 it could not be checked.

    \b
    Examples:
      headrace ledger verify
      headrace ledger verify --from 2026-11-01 --json
    """
    verdict = _until_settled(session, state_dirs, *_days(first, last), wait_s)
    session.show(_told(verdict), lambda: _print(verdict))
    if verdict.differences:
        sys.exit(1)


def _days(first: datetime | None, last: datetime | None) -> tuple[str, str]:
    today = datetime.now(UTC)
    begin, end = first or today.replace(day=1), last or today
    if f"{begin:%Y-%m-%d}" > f"{end:%Y-%m-%d}":
        raise click.BadParameter("it lies before --from", param_hint="--to")
    return f"{begin:%Y-%m-%d}", f"{end:%Y-%m-%d}"


def _until_settled(
    session: Session, state_dirs: tuple[Path, ...], first_day: str, last_day: str, wait_s: float
) -> Verdict:
    """Looks again while there is a difference: settlements need a moment to reach the ledger."""
    import httpx

    from cluster.admin_cli.failures import CannotRun, RefusedByServer
    from cluster.ledger_cli.comparison import compare
    from cluster.ledger_cli.gathering import Gathering, NotOurs

    def usage(tenant_id: str | None) -> list[dict[str, Any]]:
        query = {"from": first_day, "to": last_day, "by": "day", "tenant_id": tenant_id}
        try:
            pages = session.client.pages("/usage", size=TENANTS_A_PAGE, **query)
            return [row for page in pages for row in page["data"]]
        except RefusedByServer as error:
            if error.status == 404:  # a tenant that was deleted, without usage in these days
                return []
            raise

    transport = click.get_current_context().obj  # tests put one there
    with httpx.Client(timeout=FETCH_TIMEOUT_S, trust_env=False, transport=transport) as http:

        def fetch(address: str) -> str:
            try:
                return http.get(f"http://{address}/metrics").raise_for_status().text
            except httpx.HTTPError as error:
                raise ConnectionError(str(error)) from None

        gathering = Gathering(state_dirs, usage, fetch)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                verdict = compare(gathering.evidence(first_day, last_day))
            except (NotOurs, OSError) as error:
                raise CannotRun(str(error)) from None
            if not verdict.differences or time.monotonic() >= deadline:
                return verdict
            time.sleep(RETRY_S)


def _told(verdict: Verdict) -> dict[str, Any]:
    import msgspec

    rows: list[dict[str, Any]] = msgspec.to_builtins(verdict.rows)
    return {
        "object": "ledger.verification",
        "held": not verdict.differences,
        "rows": rows,
        "differences": [row for row in rows if row["state"] == "different"],
        "in_doubt": msgspec.to_builtins(verdict.in_doubt),
    }


def _print(verdict: Verdict) -> None:
    from cluster.admin_cli.tables import print_rows

    for check in ("usage", "metrics", "engine"):
        rows = [row for row in verdict.rows if row.check == check]
        num_equal = sum(row.state == "equal" for row in rows)
        click.echo(
            f"{check}: {num_equal} of {len(rows)} figures equal" if rows else f"{check}: nothing to compare"
        )
    if unequal := [row for row in verdict.rows if row.state != "equal"]:
        headings = ("check", "tenant", "where", "figure", "spools", "there", "state")
        print_rows(headings, [_cells(row) for row in unequal])
    if verdict.in_doubt:
        print_rows(
            ("in doubt", "request", "tenant", "gateway"),
            [(doubt.what, doubt.request_id, doubt.tenant, doubt.gateway) for doubt in verdict.in_doubt],
        )
    click.echo("different" if verdict.differences else "held")


def _cells(row: ComparisonRow) -> tuple[object, ...]:
    there = str(row.low) if row.low == row.high else f"{row.low} to {row.high}"
    return (row.check, row.tenant, row.where, row.figure, row.spooled, there, row.state.replace("_", " "))
