"""Looks, while an engine is idle, whether its invariants hold."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.block_pool import IntegrityError

log = logging.getLogger("headrace.engine")

INTEGRITY_EVERY_S = 10.0


class IntegrityWatch:
    """Owns when `check` was made last. It raises IntegrityError; `on_error` is told then."""

    def __init__(self, check: Callable[[], None], on_error: Callable[[], None], now: float) -> None:
        self._check = check
        self._on_error = on_error
        self._last_check_s = now

    def look(self, now: float) -> None:
        """At most every `INTEGRITY_EVERY_S`: the check walks all blocks."""
        if now - self._last_check_s < INTEGRITY_EVERY_S:
            return
        self._last_check_s = now
        try:
            self._check()
        except IntegrityError:
            log.exception("an invariant of the engine does not hold")
            self._on_error()
