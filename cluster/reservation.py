"""What one request has taken of its tenant's limits, from its admission to its one settlement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cluster.generation import Usage
from tenants.ledger.ask import Ask
from tenants.ledger.grant import Granted, Standing
from tenants.ledger.settlement import Outcome, Progress, Settlement

NOTHING = Usage(0, 0, 0)


class ReservationKeeper(Protocol):
    """Who keeps reservations alive and books their end."""

    def settled(self, settlement: Settlement) -> None: ...


class Reservation:
    """Owned by whoever runs the request. The first `settle` counts, and always comes."""

    def __init__(
        self, ask: Ask, granted: Granted, holder: ReservationKeeper, wall_clock: Callable[[], float]
    ) -> None:
        self._ask = ask
        self._granted = granted
        self._holder = holder
        self._wall_clock = wall_clock
        self._usage: Callable[[], Usage] = lambda: NOTHING
        self._is_settled = False

    @property
    def request_id(self) -> str:
        return self._ask.request_id

    @property
    def max_tokens(self) -> int:
        return self._granted.max_tokens

    @property
    def standing(self) -> Standing:
        return self._granted.standing

    def runs(self, usage: Callable[[], Usage]) -> None:
        """From now on `usage` tells how far it is."""
        self._usage = usage

    def progress(self) -> Progress:
        usage = self._usage()
        return Progress(
            self._ask.tenant_id, self._ask.request_id, usage.cached_tokens, usage.completion_tokens
        )

    def settle(self, outcome: Outcome, usage: Usage = NOTHING) -> bool:
        """Whether it is the one that counts."""
        if self._is_settled:
            return False
        self._is_settled = True
        settlement = Settlement.of(
            self._ask,
            ended_at=self._wall_clock(),
            outcome=outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )
        self._holder.settled(settlement)
        return True
