"""Replicas on their way: in which stage each one is, and what its start took once it serves.

Pure: told what Serve lists, what replicas report, and the time.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster.autoscaling.cold_start import LOADING, STAGES


class OnItsWay(NamedTuple):
    replica_id: str
    stage: str
    """Of `STAGES`; `node` until it is heard for the first time."""
    in_stage_s: float


class _Start:
    def __init__(self, now: float) -> None:
        self.stage_since = now
        self.stage = STAGES[0]
        self.seconds: dict[str, float] = {}


class Starts:
    """Owns the replicas that Serve has begun to start and does not list as running yet.

    A replica tells each stage when it has passed, so it is in the next one from then on. A process that was
    there before its order (Ray keeps some ready) has imported for no longer than since the order.
    """

    def __init__(self) -> None:
        self._starts: dict[str, _Start] = {}

    def begin(self, starting: frozenset[str], now: float) -> None:
        """Those that Serve is starting now."""
        for replica_id in starting - self._starts.keys():
            self._starts[replica_id] = _Start(now)

    def end(self, starting: frozenset[str], serving: frozenset[str], now: float) -> list[dict[str, float]]:
        """Forgets those that start no more; of those that serve instead what it took, in seconds by stage.

        To be asked once all that they told was heard.
        """
        ended = [
            _measured(self._starts[replica_id], now)
            for replica_id in sorted(self._starts.keys() & serving)
            if self._starts[replica_id].seconds  # without a word from it nothing is known
        ]
        for replica_id in self._starts.keys() - starting:
            del self._starts[replica_id]
        return ended

    def hear(self, replica_id: str, stage: str, seconds: float, now: float) -> None:
        """It has passed `stage`, which took so long. What is none of `STAGES` is nothing."""
        start = self._starts.get(replica_id)
        if start is None or stage not in STAGES[:-1]:
            return
        if not start.seconds:
            since_order = now - start.stage_since
            seconds = min(seconds, since_order)
            start.seconds["node"] = since_order - seconds
        start.seconds[stage] = seconds
        start.stage, start.stage_since = STAGES[STAGES.index(stage) + 1], now

    def on_the_way(self, now: float) -> list[OnItsWay]:
        return [
            OnItsWay(replica_id, start.stage, now - start.stage_since)
            for replica_id, start in sorted(self._starts.items())
        ]


def _measured(start: _Start, now: float) -> dict[str, float]:
    return {**dict.fromkeys(LOADING, 0.0), **start.seconds, STAGES[-1]: now - start.stage_since}
