"""Aborts that came before the submit that they are about."""

from __future__ import annotations

ABORT_MEMORY_S = 10.0


class EarlyAborts:
    """Owns the ids that were aborted while nothing of them was here; each is kept for `ABORT_MEMORY_S`."""

    def __init__(self) -> None:
        self._aborted_at: dict[str, float] = {}

    def note(self, request_id: str, now: float) -> None:
        self._aborted_at[request_id] = now

    def has(self, request_id: str, now: float) -> bool:
        self._aborted_at = {key: at for key, at in self._aborted_at.items() if now - at < ABORT_MEMORY_S}
        return request_id in self._aborted_at
