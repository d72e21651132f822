"""What is compiled to be looked at, and what is expected of it. Data alone: no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expected:
    """Of one kernel."""

    streams: tuple[str, ...] = ()
    """Parameters whose tensors its loops read: keys, values, weights."""
    has_products: bool = False
    """Of tiles: what tensor cores are for."""
    least_load_bits: int = 128
    """A thread's load of these."""
    precision: str = "ieee"
    """Of products of float32."""
    max_conflict_degree: int = 1
    """Of bank conflicts in shared memory: accesses that are served in this many turns."""


@dataclass(frozen=True)
class Configuration:
    """One call of an op's public function, and so every kernel that it launches."""

    op: str
    name: str
    arguments: Mapping[str, Any]
    """Of the op's function in `calls.py`."""
    max_conflict_degree: int = 1
    least_load_bits: int = 128
    """Where less is stated than of the kernel."""
    least_arch: str = "sm_80"
    is_quick: bool = False
    """Among the few that are compiled by default, and in every run of the tests."""
