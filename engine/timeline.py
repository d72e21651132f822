"""When things happened to one request, in seconds of the engine's clock."""

from __future__ import annotations

from dataclasses import dataclass

from engine.request import Timing


@dataclass(slots=True)
class Timeline:
    arrival_s: float
    num_preemptions: int = 0
    _first_scheduled_s: float | None = None
    _first_token_s: float | None = None
    _preempted_since_s: float | None = None
    _preempted_s: float = 0.0

    def scheduled(self, now: float) -> None:
        if self._first_scheduled_s is None:
            self._first_scheduled_s = now
        if self._preempted_since_s is not None:
            self._preempted_s += now - self._preempted_since_s
            self._preempted_since_s = None

    def sampled(self, now: float) -> None:
        if self._first_token_s is None:
            self._first_token_s = now

    def preempted(self, now: float) -> None:
        self.num_preemptions += 1
        self._preempted_since_s = now

    def timing(self, now: float) -> Timing:
        """As if the request ended `now`. What it never reached takes 0 s.

        `preempted_s` is a part of the prefill or decode time that it interrupted.
        """
        scheduled = now if self._first_scheduled_s is None else self._first_scheduled_s
        first_token = now if self._first_token_s is None else self._first_token_s
        preempted_since = now if self._preempted_since_s is None else self._preempted_since_s
        return Timing(
            queued_s=scheduled - self.arrival_s,
            prefill_s=first_token - scheduled,
            decode_s=now - first_token,
            preempted_s=self._preempted_s + now - preempted_since,
            num_preemptions=self.num_preemptions,
        )
