"""Notices that there is work and nothing advances, which no exception would ever tell."""

from __future__ import annotations

from engine.counters import EngineCounters


class Watchdog:
    """Owns when the engine last advanced. Told the time; `limit_s` is how long it may stand still.

    Advancing means that tokens were computed or that there was no work. Whatever stands still looks
    the same from outside: an executor that hangs, a scheduler that plans nothing, a thread that died.
    """

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._last_advance = now
        self._num_computed_tokens = -1
        self._had_work = False

    def observe(self, counters: EngineCounters, *, has_work: bool, now: float) -> None:
        """What was seen at `now`; call it a few times in `limit_s`."""
        is_new = has_work and not self._had_work  # it may have come just now
        if not has_work or is_new or counters.computed_tokens_total != self._num_computed_tokens:
            self._num_computed_tokens = counters.computed_tokens_total
            self._last_advance = now
        self._had_work = has_work

    def is_stalled(self, now: float) -> bool:
        return now - self._last_advance >= self._limit_s

    def explain(self, counters: EngineCounters, *, step_begun: float | None, now: float) -> str:
        """One line for the log: where it stands. `step_begun`: of the step in flight, if there is one."""
        queue = f"{counters.requests_running} running, {counters.requests_waiting} waiting"
        if step_begun is not None:
            return f"a step has been running for {now - step_begun:.1f} s ({queue}): the executor hangs"
        blocks = f"{counters.blocks_in_use} of {counters.blocks_total} blocks in use"
        return f"nothing was computed for {now - self._last_advance:.1f} s ({queue}, {blocks})"
