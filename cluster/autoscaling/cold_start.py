"""How long a replica takes from its order until it serves: learned, stage by stage.

Pure. Algorithm: of each stage the last `NUM_KEPT` starts are kept. Its estimate is the larger of their median
and of a mean that leans on the latest: one quick start does not make it short, and slow ones count at once.
Until a stage was seen its cold value holds.
Failure mode: other starts than those before (a node that has to be fetched, files that are no longer in the
page cache) take longer than told once, and only the next ones are expected so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

STAGES = ("node", "import", "weights", "KV pool", "warm-up", "golden", "join")
"""In their order. `node`: until its process runs; `import`: until its constructor does; the next four are
`cluster/loading.py`'s, and a model that is a tape has the last of them only; `join`: until it is listed."""
LOADING = STAGES[2:6]
COLD_S = {
    "node": 5.0,
    "import": 10.0,
    "weights": 20.0,
    "KV pool": 1.0,
    "warm-up": 10.0,
    "golden": 5.0,
    "join": 2.0,
}
NUM_KEPT = 8
LATEST_WEIGHT = 0.5


class ColdStart:
    """Owns what was learned of the starts of one model."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {stage: deque(maxlen=NUM_KEPT) for stage in STAGES}

    def learn(self, seconds: Mapping[str, float]) -> None:
        """One start: seconds by stage. A stage that is not in it was not measured."""
        for stage in STAGES:
            if stage in seconds:
                self._seen[stage].append(seconds[stage])

    def by_stage(self) -> dict[str, float]:
        """What each stage is expected to take, in seconds."""
        return {stage: _expected(seen) if seen else COLD_S[stage] for stage, seen in self._seen.items()}

    @property
    def total_s(self) -> float:
        """From an order that is given now until that replica serves."""
        return sum(self.by_stage().values())

    def eta_s(self, stage: str, in_stage_s: float) -> float:
        """Until a replica serves that has been in `stage` for so long.

        One that is late is expected to take as much longer as it is late. Nobody tells when a node is there,
        so a replica counts as in `node` until its `import` is over.
        """
        learned = self.by_stage()
        next_stage = STAGES.index(stage) + (2 if stage == "node" else 1)
        expected = sum(learned[one] for one in STAGES[STAGES.index(stage) : next_stage])
        return abs(expected - in_stage_s) + sum(learned[one] for one in STAGES[next_stage:])


def _expected(seen: deque[float]) -> float:
    leaning = seen[0]
    for seconds in seen:
        leaning += LATEST_WEIGHT * (seconds - leaning)
    return max(median(seen), leaning)
