"""Fair shares inside an engine: by class, in it by what each flow was served by its weight, then by arrival.

Priority 0 is interactive and goes first, 1 is batch and has its floor (`tenants/batch_floor.py`). What nobody
asked for (`WARMING`) goes after both, first come, first served, and counts for nothing in their shares. In a
class each flow's next request stands at the flow's virtual counter (`tenants/virtual_counters.py`, with the
bound). The one after it stands where the counter will be when the first is computed, for `order` lines up
all that one step may take: else a flow that is a token behind could fill the whole step. A flow's own line is
that of first come, first served: the preempted in front.

Failure mode: prompts above half of a step's budget have half of it together while shorter ones wait
(`engine/step_builder.py`), whatever their classes and shares are: all this holds among prompts on one side of
that line. And what a request will still make is not known when it is picked: a flow of long answers takes
more than its share at first, and waits for that afterwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from operator import attrgetter

from cluster.generation import PRIORITY, WARMING
from engine.policy import C, Candidate, SchedulingPolicy, Service, place_in_line
from tenants.batch_floor import BatchFloor
from tenants.service_tokens import service_tokens
from tenants.virtual_counters import VirtualCounters

INTERACTIVE = PRIORITY["interactive"]


class FairShare(SchedulingPolicy):
    """Owns what every flow was served by this engine; each has a policy of its own."""

    def __init__(self) -> None:
        # One for each class: what batch was kept from is no measure for who comes in the other.
        self._interactive = VirtualCounters()
        self._batch = VirtualCounters()
        self._unasked = VirtualCounters()
        """Nobody's turn depends on these."""
        self._floor = BatchFloor()
        self._is_contended = False
        """Whether both classes waited when the newest step was begun."""

    def arrived(self, candidate: Candidate) -> None:
        self._counters(candidate).arrived(candidate.flow.flow_id)

    def left(self, candidate: Candidate) -> None:
        self._counters(candidate).left(candidate.flow.flow_id)

    def served(self, candidate: Candidate, service: Service) -> None:
        tokens, flow = service_tokens(*service), candidate.flow
        self._counters(candidate).charge(flow.flow_id, flow.weight, tokens)
        if candidate.priority == INTERACTIVE:
            self._floor.interactive_served(tokens, self._is_contended)
        elif candidate.priority < WARMING:
            self._floor.batch_served(tokens - service.num_output_tokens, self._is_contended)
            self._floor.batch_made(service.num_output_tokens, self._is_contended)

    def order(self, candidates: Iterable[C]) -> Iterator[C]:
        """O(n) if they come in order, as they mostly do, and O(log flows) for each that is taken."""
        self._is_contended = self._interactive.is_anyone_waiting and self._batch.is_anyone_waiting
        line = sorted(candidates, key=place_in_line)
        priority = attrgetter("priority")
        num_interactive = bisect_right(line, INTERACTIVE, key=priority)
        num_asked = bisect_left(line, WARMING, key=priority)
        interactive = _by_share(self._interactive, line[:num_interactive])
        batch = _by_share(self._batch, line[num_interactive:num_asked])
        return chain(_first(batch, self._floor.batch_beside(0)), interactive, batch, line[num_asked:])

    def victim(self, candidates: Sequence[C]) -> C:
        """Of the lowest class, and in it of the flow furthest above its share, the one with the fewest tokens
        to recompute; of equals, the youngest."""
        return min(
            candidates,
            key=lambda c: (
                -c.priority,
                -self._counters(c).of(c.flow.flow_id),
                c.num_computed_tokens,
                -c.arrival_order,
            ),
        )

    def is_background(self, candidate: Candidate) -> bool:
        return candidate.priority == WARMING

    def _counters(self, candidate: Candidate) -> VirtualCounters:
        if candidate.priority == INTERACTIVE:
            return self._interactive
        return self._batch if candidate.priority < WARMING else self._unasked


def _first(line: Iterator[C], tokens: float) -> Iterator[C]:
    """So many tokens' worth, rounded up to a request."""
    while tokens > 0 and (candidate := next(line, None)) is not None:
        tokens -= candidate.num_uncomputed_tokens
        yield candidate


def _by_share(counters: VirtualCounters, line: Sequence[C]) -> Iterator[C]:
    """One class, of which each flow's candidates stand in `line` as they are to go."""
    flows: defaultdict[str, list[C]] = defaultdict(list)
    for candidate in reversed(line):
        flows[candidate.flow.flow_id].append(candidate)
    # Who comes starts level with the flow that has had the least, mostly one that always waits: the shorter
    # line goes first.
    heads = [(counters.of(flow_id), len(own), own[-1].arrival_order, own) for flow_id, own in flows.items()]
    heapify(heads)
    while heads:
        start, _, _, own = heads[0]
        candidate = own.pop()
        end = start + candidate.num_uncomputed_tokens / candidate.flow.weight
        if own:
            heapreplace(heads, (end, len(own), own[-1].arrival_order, own))
        else:
            heappop(heads)
        yield candidate
