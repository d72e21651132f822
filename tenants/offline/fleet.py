"""How many gateways live, by their heartbeats: the same beat is the probe of a record in trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

GATEWAY_TTL_S = 3.0
"""A gateway that was not heard for so long is gone."""


class Beat(NamedTuple):
    num_gateways: int
    """This one included."""
    is_whole: bool
    """The record is all there; False: it came back empty."""


class Fleet(Protocol):
    """Owns which gateways live."""

    async def beat(self, gateway_id: str) -> Beat:
        """It lives. Writes, by a script, so it fails whenever requests would. Raises `StoreUnavailable`."""

    async def leave(self, gateway_id: str) -> None:
        """It is gone. Raises `StoreUnavailable`."""


class MemoryFleet:
    """`clock` tells seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_beats: dict[str, float] = {}
        self.is_whole = True

    async def beat(self, gateway_id: str) -> Beat:
        now = self._clock()
        self._last_beats[gateway_id] = now
        self._last_beats = {name: at for name, at in self._last_beats.items() if at > now - GATEWAY_TTL_S}
        return Beat(len(self._last_beats), self.is_whole)

    async def leave(self, gateway_id: str) -> None:
        self._last_beats.pop(gateway_id, None)
