"""What commands over the spools are told alike."""

from __future__ import annotations

from pathlib import Path

import click

DAY = click.DateTime(["%Y-%m-%d"])

of_state_dirs = click.option(
    "--state-dir",
    "state_dirs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    default=(Path(".headrace"),),
    help="Of the cluster, default .headrace; may be given several times, once for each of its machines.",
)
