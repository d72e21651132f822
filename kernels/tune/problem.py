"""What is tuned: an op's call of one shape, the choices that it leaves, and what its loops do for each.

Loops are counted by arithmetic, so that a compiled candidate's instructions for one turn can be multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.tune.space import Candidate, Space

TILE = ("num_rows", "num_keys", "num_outputs", "num_bytes", "num_warps", "num_stages")
"""Genes that make a tile, in the order of the fields of `AttentionTile` and of `MatmulTile`."""


@dataclass(frozen=True)
class Turns:
    """Of one kernel's loop, over all programs together."""

    number: int
    flops: int
    """Of the products of one turn, with what pads a tile."""
    num_bytes: int
    """That one turn reads."""
    num_loads: int = 1
    """One after the other, since the first says where the second reads: a block table, then keys."""


@dataclass(frozen=True)
class Problem:
    op: str
    name: str
    shape: Mapping[str, int | str]
    """What a tuned entry is looked up by."""
    arguments: Mapping[str, Any]
    """Of `kernels/audit/calls.py` and `kernels/roofline.py`, without what is chosen."""
    space: Space
    start: Candidate
    """What is used without a table."""
    turns: Callable[[Mapping[str, int]], Mapping[str, Turns]]
    """By kernel, for the named choices."""

    def arguments_with(self, candidate: Candidate) -> dict[str, Any]:
        chosen = self.space.named(candidate)
        tile = [chosen.pop(name) for name in TILE if name in chosen]
        return {**self.arguments, **chosen, "tile": tile}
