"""Whether the record is asked at all: not after one failure, until a probe in the background succeeds.

    closed --a call failed--> open --a probe succeeded--> closed

One failure is enough, a time-out above all, since each costs a request all of `MAX_CALL_S`. What comes within
that time after a change was asked before it, and changes nothing: a call that was on its way while the record
came back does not take it away again.

Failure mode: a record that answers probes and fails requests opens and closes it once a probe. Each request
still waits at most once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tenants.store import Trouble

MAX_CALL_S = 0.25
"""Every call of the record ends within this."""
PROBE_EVERY_S = 0.5


class Breaker:
    """Owns what this process believes of the record; told the time, in seconds of any steady clock.

    `on_change` is called at each transition: with the trouble that opened it, or that an open one turned
    into; with None when it closed.
    """

    def __init__(self, on_change: Callable[[Trouble | None], None] = lambda trouble: None) -> None:
        self._on_change = on_change
        self._trouble: Trouble | None = None
        self._since = -math.inf

    @property
    def trouble(self) -> Trouble | None:
        """Why the record is not asked; None: it is."""
        return self._trouble

    @property
    def since(self) -> float:
        """When it opened or closed last; minus infinity: it never opened."""
        return self._since

    def failed(self, trouble: Trouble, now: float) -> None:
        if self._trouble is not None:
            self._turn(trouble)
        elif self._is_news(now):
            self._since = now
            self._turn(trouble)

    def succeeded(self, now: float) -> None:
        if self._trouble is not None and self._is_news(now):
            self._since = now
            self._turn(None)

    def _is_news(self, now: float) -> bool:
        return now - self._since > MAX_CALL_S

    def _turn(self, trouble: Trouble | None) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._on_change(trouble)
