"""Where new keys go, each shown this once: stdout, or a file that only its owner reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

import click

from cluster.admin_cli.failures import CannotRun

_SHOWN = ("tenant_id", "name", "key_id", "key")


class NewKeys:
    """Owns the file of `--keys-out`: it is there before anything is made, and goes if no key was."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = None if path is None else _new_private_file(path)

    def write(self, told: dict[str, Any]) -> None:
        """One key. A file that cannot take it leaves it to stdout: it is shown nowhere else."""
        if self._file is None:
            click.echo(f"key of {told['tenant_id']}/{told['name']}: {told['key']}")
            return
        try:
            self._file.write(json.dumps({name: told[name] for name in _SHOWN}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            click.echo(f"{self._file.name} takes no key: {error.strerror}", err=True)
            click.echo(f"key of {told['tenant_id']}/{told['name']}: {told['key']}")

    def close(self) -> None:
        if self._path is None or self._file is None:
            return
        self._file.close()
        if not self._path.stat().st_size:
            self._path.unlink()


def _new_private_file(path: Path) -> IO[str]:
    try:
        return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8")
    except FileExistsError:
        raise CannotRun(
            f"--keys-out: {path} is there already, and may hold the keys of another run"
        ) from None
    except OSError as error:
        raise CannotRun(f"--keys-out: {path} cannot be made: {error.strerror}") from None
