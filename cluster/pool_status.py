"""What is known of one pool of replicas now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolStatus:
    running: frozenset[str]
    """Ids of the replicas that have loaded and are not leaving, as gateways know them."""
    target: int
    """How many replicas the pool is to have."""
    failure: str | None = None
    """Why the first replica of the pool could not start, in one line; it is not tried again."""
    starting: frozenset[str] = frozenset()
    """Ids of those that have begun and not loaded yet."""
    leaving: frozenset[str] = frozenset()
    """Ids of those that take no new work and end."""

    @property
    def is_settled(self) -> bool:
        """Whether as many serve as are to, and nobody comes or goes."""
        return len(self.running) == self.target and not self.starting and not self.leaving
