"""How many gateways live, by their heartbeats: the same beat is the probe of a record in trouble."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol

GATEWAY_TTL_S = 3.0
"""A gateway that was not heard for so long is gone."""
REOPENED_TTL_S = 10.0
"""So long it counts that one said of an empty record that it knows all: it says so at every beat."""


class Beat(NamedTuple):
    num_gateways: int
    """This one included."""
    epoch: str | None
    """Names this life of the record; None: it came back empty, and is not whole."""


class Membership(Protocol):
    """Owns which gateways live."""

    async def beat(self, gateway_id: str) -> Beat:
        """It lives. Writes, by a script, so it fails whenever requests would. Raises `StoreUnavailable`."""

    async def reopened(self, gateway_id: str) -> None:
        """Nothing that was granted in it is unknown to this record any more; it says so again each time that
        it finds it empty. Raises `StoreUnavailable`.
        """

    async def num_missing(self, num_gateways: int) -> int:
        """Of those who live, and of `num_gateways` at least, how many did not say so of this record.

        Raises `StoreUnavailable`.
        """

    async def leave(self, gateway_id: str) -> None:
        """It is gone. Raises `StoreUnavailable`."""


class MemoryMembership:
    """`clock` tells seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_beats: dict[str, float] = {}
        self._reopened: dict[str, float] = {}
        self.epoch: str | None = "first"

    async def beat(self, gateway_id: str) -> Beat:
        self._last_beats[gateway_id] = self._clock()
        return Beat(len(self._living()), self.epoch)

    async def reopened(self, gateway_id: str) -> None:
        self._reopened[gateway_id] = self._clock()

    async def num_missing(self, num_gateways: int) -> int:
        since = self._clock() - REOPENED_TTL_S
        living = self._living()
        num_told = sum(self._reopened.get(name, -inf) > since for name in living)
        return max(len(living), num_gateways) - num_told

    def is_emptied(self) -> None:
        """All that is in it is lost."""
        self._last_beats.clear()
        self._reopened.clear()
        self.epoch = None

    async def leave(self, gateway_id: str) -> None:
        self._last_beats.pop(gateway_id, None)

    def _living(self) -> list[str]:
        return [name for name, at in self._last_beats.items() if at > self._clock() - GATEWAY_TTL_S]
