"""`headrace usage export`: every settlement that is on the disk, for whoever writes invoices."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from cluster.ledger_cli.options import DAY, of_state_dirs

if TYPE_CHECKING:
    from tenants.ledger.settlement import Settlement


@click.command()
@click.option(
    "--from",
    "first",
    type=DAY,
    metavar="DAY",
    help="First UTC day, as 2026-11-30; a request is of the day it began.",
)
@click.option("--to", "last", type=DAY, metavar="DAY", help="Last UTC day.")
@click.option("--tenant", "tenant_id", help="Of this tenant only.")
@click.option("--csv", "layout", flag_value="csv", help="Comma-separated, with a line of headings.")
@click.option(
    "--json", "layout", flag_value="json", default="json", help="A JSON object a line; the default."
)
@of_state_dirs
def export(
    first: datetime | None,
    last: datetime | None,
    tenant_id: str | None,
    layout: str,
    state_dirs: tuple[Path, ...],
) -> None:
    """Every settled request, one a line, from the spools on this machine.

    Reads the state directory, so it needs no running cluster. A request that was
    settled for a dead gateway and again by that gateway itself is told once, as
    the gateway has it. Deleted tenants are in it. Exit status: 0 done, 1 some lines
    were damaged and are left out (named on stderr), 2 it could not run.

    \b
    outcome   how a request ended
    finished  whole, and paid for
    left      by its client or its deadline; paid for as far as it came
    failed    by our fault: its tokens are told, and free
    unserved  it never ran: all is given back
    reaped    its gateway died: tokens as it told last, until its own line corrects them

    \b
    Examples:
      headrace usage export --from 2026-11-01 --to 2026-11-30 --csv
      headrace usage export --tenant acme
    """
    damaged: list[str] = []
    chosen = _chosen(state_dirs, first, last, tenant_id, damaged.append)
    num_told = (_write_csv if layout == "csv" else _write_json)(chosen, sys.stdout)
    if not num_told:
        of_whom = "" if tenant_id is None else f" of tenant {tenant_id}"
        places = ", ".join(str(state_dir / "spool") for state_dir in state_dirs)
        click.echo(f"headrace usage export: no request{of_whom} on these days in {places}", err=True)
    for place in damaged:
        click.echo(f"headrace usage export: left out: {place}", err=True)
    if damaged:
        sys.exit(1)


def _chosen(
    state_dirs: tuple[Path, ...],
    first: datetime | None,
    last: datetime | None,
    tenant_id: str | None,
    on_corrupt: Callable[[str], None],
) -> Iterator[Settlement]:
    from cluster.settings import SPOOLS
    from tenants.spool.reading import utc_day
    from tenants.spool.record import SpoolRecord

    first_day = f"{first:%Y-%m-%d}" if first else ""
    last_day = f"{last:%Y-%m-%d}" if last else "9999"
    spools = (state_dir / SPOOLS for state_dir in state_dirs)
    for one in SpoolRecord(*spools, on_corrupt=on_corrupt).settlements():
        if first_day <= utc_day(one.started_at) <= last_day and tenant_id in (None, one.tenant_id):
            yield one


def _write_json(settlements: Iterator[Settlement], out: TextIO) -> int:
    """How many."""
    import msgspec

    num_told = 0
    for one in settlements:
        num_told += 1
        out.write(msgspec.json.encode(one).decode() + "\n")
    return num_told


def _write_csv(settlements: Iterator[Settlement], out: TextIO) -> int:
    """How many."""
    import msgspec

    from tenants.ledger.settlement import Settlement

    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(Settlement.__struct_fields__)
    num_told = 0
    for one in settlements:
        num_told += 1
        rows.writerow(msgspec.structs.astuple(one))
    return num_told
