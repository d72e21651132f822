"""Points that are drawn as a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Curve(NamedTuple):
    x: Sequence[float]
    y: Sequence[float]
