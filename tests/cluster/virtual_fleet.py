"""Replicas and one gateway in virtual time, to compare routing policies: all that decides is the real code.

Each replica is a production `Scheduler` whose model is a clock. The gateway keeps the production
`RoutedPrefixes`, asks the policy, and knows of a replica what its link would have told: counters as of the
last step, what it routed since, and the blocks that the replica held when it last published.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from cluster.index.prefix_index import INDEX_EVERY, indexed
from cluster.routed_prefixes import RoutedPrefixes
from cluster.routing import Prompt, ReplicaLoad, RoutingPolicy
from engine.block_chain import NamedBlock
from engine.block_events import BlockListener
from engine.config import BLOCK_SIZE, EngineConfig
from engine.counters import EngineCounters
from engine.policy import FirstComeFirstServed
from engine.request import Request, RequestOutput
from engine.scheduler import Scheduler
from engine.step import StepPlan
from loadtest.in_flight import Moment, max_over_mean
from loadtest.percentiles import percentile
from loadtest.studies.virtual_engine import StepTime
from tests.builders import answer

PUBLISHED_EVERY_S = 0.1
SMALL_MODEL = StepTime(base_s=0.01, token_s=0.000_1)


@dataclass(frozen=True)
class FleetConfig:
    num_replicas: int = 4
    num_blocks: int = 601
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    step_time: StepTime = SMALL_MODEL
    seed: int = 0

    @property
    def tokens_per_s(self) -> float:
        """What all replicas compute together with full steps."""
        full = self.max_num_batched_tokens
        return self.num_replicas * full / (self.step_time.base_s + full * self.step_time.token_s)


class _Held(BlockListener):
    """Owns the names that a replica's prefix cache holds, as its block events tell them."""

    def __init__(self) -> None:
        self.block_hashes: set[bytes] = set()

    def stored(self, root: bytes, block: NamedBlock) -> None:
        self.block_hashes.add(block.block_hash)

    def evicted(self, block: NamedBlock) -> None:
        self.block_hashes.remove(block.block_hash)


class _Replica:
    """Owns one scheduler, and the gateway's view of it."""

    def __init__(self, replica_id: str, config: FleetConfig) -> None:
        self.replica_id = replica_id
        self._held = _Held()
        self._scheduler = Scheduler(
            EngineConfig(
                num_blocks=config.num_blocks,
                max_model_len=BLOCK_SIZE * (config.num_blocks - 1),
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
            ),
            FirstComeFirstServed(),
            eos_token_ids=(),
            listener=self._held,
        )
        self._step_time = config.step_time
        self._mailbox: list[Request] = []
        self._plan: StepPlan | None = None
        self._counters: EngineCounters | None = None
        self._in_flight: dict[str, int] = {}
        self._acknowledged: set[str] = set()
        self._taken_in: set[str] = set()
        self._claims: frozenset[bytes] = frozenset()
        self.num_live = 0

    def submit(self, request: Request, uncached_tokens: int) -> None:
        self._mailbox.append(request)
        self._in_flight[request.request_id] = uncached_tokens
        self._acknowledged.add(request.request_id)
        self.num_live += 1

    def begin_step(self, now: float) -> float | None:
        """When the step will end; None if one is under way or there is nothing to do."""
        if self._plan is not None:
            return None
        for request in self._mailbox:
            self._scheduler.add(request, now)
        self._mailbox.clear()
        if not self._scheduler.has_work():
            return None
        self._plan = self._scheduler.schedule(now)
        return now + self._step_time.of(self._plan)

    def end_step(self, now: float) -> list[RequestOutput]:
        assert self._plan is not None
        outputs = self._scheduler.update(self._plan, answer(self._plan), now)
        self._plan = None
        self._counters = self._scheduler.counters()
        for request_id in self._taken_in:  # as links do: it counts until the second message
            self._in_flight.pop(request_id)
        self._taken_in, self._acknowledged = self._acknowledged, set()
        self.num_live -= sum(output.finish_reason is not None for output in outputs)
        return outputs

    def publish(self) -> None:
        self._claims = frozenset(self._held.block_hashes)

    def num_claimed_blocks(self, block_hashes: Sequence[bytes]) -> int:
        entries = indexed(block_hashes)
        return INDEX_EVERY * bisect_left(entries, True, key=lambda one: one not in self._claims)

    def load(self, cached_tokens: int) -> ReplicaLoad:
        return ReplicaLoad.of(self.replica_id, self._counters, self._in_flight, cached_tokens)


@dataclass
class Outcome:
    """What one run came to."""

    hit_tokens: int = 0
    chosen: list[str] = field(default_factory=list)
    """Replica of each request, in the order of arrival."""
    cached_tokens: dict[str, int] = field(default_factory=dict)
    ttft_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    moments: list[Moment] = field(default_factory=list)
    """While requests were still to come; every replica is in each."""

    @property
    def max_over_mean(self) -> float:
        ratio = max_over_mean(self.moments, len(self.moments[0].in_flight))
        assert ratio is not None
        return ratio

    @property
    def ttft_p99_s(self) -> float:
        p99 = percentile(self.ttft_s, 99)
        assert p99 is not None
        return p99


class VirtualFleet:
    """Owns the replicas and the clock of one run."""

    def __init__(self, policy: RoutingPolicy, config: FleetConfig = FleetConfig()) -> None:
        self._policy = policy
        self._rng = Random(config.seed)
        self._replicas = [_Replica(f"replica-{number}", config) for number in range(config.num_replicas)]
        self._by_id = {replica.replica_id: replica for replica in self._replicas}
        self._routed = RoutedPrefixes()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._arrived_s: dict[str, float] = {}
        self._waiting: deque[Request] = deque()
        self._is_closed_loop = False
        self._outcome = Outcome()

    def run(self, requests: Iterable[Request], arrivals: int | Sequence[float]) -> Outcome:
        """`arrivals`: seconds at which the requests come, in order; or a number of clients, each of whom
        sends its next as soon as its last is answered."""
        self._waiting.extend(requests)
        self._is_closed_loop = isinstance(arrivals, int)
        for at in [0.0] * arrivals if isinstance(arrivals, int) else arrivals:
            self._at(at, self._arrive)
        self._at(PUBLISHED_EVERY_S, self._publish)
        for event in self._take_events():
            event()
        self._outcome.ended_s = self._now
        return self._outcome

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._order), event))

    def _take_events(self) -> Iterator[Callable[[], None]]:
        while self._waiting or any(replica.num_live for replica in self._replicas):
            time, _, event = heappop(self._events)
            if self._waiting:
                in_flight = Counter({replica.replica_id: replica.num_live for replica in self._replicas})
                self._outcome.moments.append(Moment(time - self._now, in_flight))
            self._now = time
            yield event

    def _publish(self) -> None:
        for replica in self._replicas:
            replica.publish()
        self._at(self._now + PUBLISHED_EVERY_S, self._publish)

    def _arrive(self) -> None:
        if not self._waiting:
            return
        request = self._waiting.popleft()
        num_tokens = len(request.prompt_token_ids)
        loads = [replica.load(self._cached_tokens(replica, request)) for replica in self._replicas]
        entries = indexed(request.block_hashes)
        num_blocks = max(load.cached_tokens for load in loads) // BLOCK_SIZE
        share = self._routed.share(request.block_hashes, num_blocks, self._now)
        replica_id = self._policy.choose(loads, Prompt(num_tokens, entries[0], share), self._rng)
        (chosen,) = (load for load in loads if load.replica_id == replica_id)
        self._routed.note(replica_id, entries, self._now)
        replica = self._by_id[replica_id]
        replica.submit(request, num_tokens - chosen.cached_tokens)
        self._outcome.chosen.append(replica_id)
        self._arrived_s[request.request_id] = self._now
        self._begin_step(replica)

    def _cached_tokens(self, replica: _Replica, request: Request) -> int:
        routed = self._routed.num_blocks(replica.replica_id, request.block_hashes, self._now)
        return BLOCK_SIZE * max(routed, replica.num_claimed_blocks(request.block_hashes))

    def _begin_step(self, replica: _Replica) -> None:
        ends = replica.begin_step(self._now)
        if ends is not None:
            self._at(ends, lambda: self._end_step(replica))

    def _end_step(self, replica: _Replica) -> None:
        for output in replica.end_step(self._now):
            if output.num_cached_tokens is not None:
                self._outcome.hit_tokens += output.num_cached_tokens
                self._outcome.cached_tokens[output.request_id] = output.num_cached_tokens
                self._outcome.ttft_s.append(self._now - self._arrived_s[output.request_id])
            if output.finish_reason is not None and self._is_closed_loop:
                self._arrive()
        self._begin_step(replica)
