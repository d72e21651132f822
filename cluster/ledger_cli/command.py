"""`headrace ledger`: the books."""

from __future__ import annotations

import click

from cluster.ledger_cli.verify_command import verify


@click.group()
def ledger() -> None:
    """The books: what was settled, and whether everything agrees with it.

    Example: headrace ledger verify
    """


ledger.add_command(verify)
