"""Virtual token counters: what each flow was served, by its weight, with no credit for time away.

Of the flows that wait, the one with the least counter is served next; what it takes is charged, its input
as it is computed and its output as it comes. A flow that begins to wait is lifted to the *level*: the
least counter of those that wait already, or, if nobody does, that of the last one that did. So the level
never falls, a flow that was away has no claim on what others took meanwhile, and a debt stays.

The bound. Let D be the most that a flow's requests, once picked, can still be charged: input to come and
output up to its limit, over all that run. When a flow was picked last its counter was at most the level,
and has grown by at most D / weight since: a counter is never more than D / weight above the level, nor,
of a flow that waits, below it. While two flows f and g both wait nothing is lifted, so what they are
served between any two times then differs by

    |S_f / w_f - S_g / w_g| <= D_f / w_f + D_g / w_g

and a flow waits for nobody who has had D / weight more than itself. Source: VTC, theorem 4.4 of Sheng et
al. 2024, "Fairness in Serving Large Language Models", where D is the same for all and the bound is twice
its value.
"""

from __future__ import annotations

from collections import Counter


class VirtualCounters:
    """Owns the counters: of flows that wait, that are above the level, or that were charged since it was
    last looked at. All others are at the level, and forgotten. A counter is in tokens of service by weight.

    To begin to wait costs O(flows that are kept), everything else O(1).
    """

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._num_waiting: Counter[str] = Counter()
        self._level = 0.0
        """As it was when a flow last began to wait."""
        self._last = ""
        """The flow that waited last, while nobody does."""

    def __len__(self) -> int:
        return len(self._counters)

    @property
    def is_anyone_waiting(self) -> bool:
        return bool(self._num_waiting)

    def of(self, flow_id: str) -> float:
        return self._counters.get(flow_id, self._level)

    def arrived(self, flow_id: str) -> None:
        """One more request of this flow waits."""
        if not self._num_waiting[flow_id]:
            self._lift(flow_id)
        self._num_waiting[flow_id] += 1

    def left(self, flow_id: str) -> None:
        """One of those that waited does so no longer."""
        self._num_waiting[flow_id] -= 1
        if not self._num_waiting[flow_id]:
            del self._num_waiting[flow_id]
            self._last = flow_id

    def charge(self, flow_id: str, weight: int, tokens: float) -> None:
        """`tokens` of service. The flow need not wait."""
        self._counters[flow_id] = self.of(flow_id) + tokens / weight

    def _lift(self, flow_id: str) -> None:
        self._level = level = min(map(self.of, self._num_waiting or (self._last,)))
        waiting = self._num_waiting
        self._counters = {one: at for one, at in self._counters.items() if at > level or one in waiting}
        self._counters[flow_id] = max(level, self.of(flow_id))
