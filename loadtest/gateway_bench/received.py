"""An answer as it came."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Received:
    """One answer: the body's parts in order and each one's arrival, in seconds of the clock."""

    sent_at: float
    status: int = 0
    parts: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
