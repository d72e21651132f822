"""The processes of the cluster that runs on a state directory: who is there, and who has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

Fetch = Callable[[str], str]
"""Of an address, the metrics page. Raises `OSError` if nothing answers."""


class Target(msgspec.Struct, frozen=True):
    """As `targets.json` has it, in Prometheus' file_sd format."""

    targets: tuple[str, ...]
    labels: dict[str, str]

    @property
    def name(self) -> str:
        return self.labels.get(self.process, "")

    @property
    def process(self) -> str:
        return self.labels.get("process", "")


def targets_of(state_dir: Path) -> list[Target]:
    """None if no cluster of this state directory runs here. Raises ValueError for a damaged file."""
    return _read(state_dir / "run" / "targets.json")


def gone_from(state_dir: Path) -> list[Target]:
    """Those of the same cluster that died or left before."""
    return _read(state_dir / "run" / "gone.json")


def pages(targets: list[Target], process: str, fetch: Fetch) -> Iterator[tuple[str, str | None]]:
    """Name and metrics page of each; None where nothing answers."""
    for target in targets:
        if target.process == process and target.targets:
            try:
                yield target.name, fetch(target.targets[0])
            except OSError:
                yield target.name, None


def _read(path: Path) -> list[Target]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Target])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError:
        raise ValueError(f"{path} is damaged") from None
