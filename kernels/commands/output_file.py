"""A file that a command writes at its end: refused at its beginning where there is no place for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class OutputFile(click.Path):
    """Nothing is opened: what was there stays until there is something to put in its place."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        folder = path.absolute().parent
        if not path.exists() and not (folder.is_dir() and os.access(folder, os.W_OK)):
            self.fail(f"{folder} is no folder that can be written to", param, ctx)
        return path
