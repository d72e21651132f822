"""What goes to a compiling process, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.audit.facts import Facts


@dataclass(frozen=True)
class Job:
    op: str
    arguments: Mapping[str, Any]
    arch: str


@dataclass(frozen=True)
class Answer:
    kernels: Sequence[Facts]
    """In the order of their launches."""
    compile_s: float
    """With what Triton had in its cache; reading the result is in it."""
    error: str | None = None
    """Why there are none."""
