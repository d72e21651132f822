"""A replica whose model is a clock: scheduler, policy, accounts and windows are the production code."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from cluster.admission_windows import AdmissionWindows
from cluster.backlog import Backlog
from cluster.gateway_accounts import GatewayAccounts, News
from cluster.index.prefix_index import INDEX_EVERY, indexed
from cluster.link import HEARTBEAT_S, Hello, LinkMessage, StepMessage
from engine.block_chain import NamedBlock
from engine.block_events import BlockListener
from engine.counters import EngineCounters
from engine.request import Request, RequestOutput
from engine.scheduler import Scheduler
from engine.step import StepPlan
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.config import FleetConfig
from loadtest.studies.virtual_engine import sampled

PUBLISHED_EVERY_S = 0.1
LOOK_EVERY_S = 1.0
"""As often as an engine's thread wakes that has nothing to do."""


class _Held(BlockListener):
    """Owns the names that a replica's prefix cache holds, as its block events tell them."""

    def __init__(self) -> None:
        self.block_hashes: set[bytes] = set()

    def stored(self, root: bytes, block: NamedBlock) -> None:
        self.block_hashes.add(block.block_hash)

    def evicted(self, block: NamedBlock) -> None:
        self.block_hashes.remove(block.block_hash)


class VirtualReplica:
    """Owns one scheduler and what waits to be told to it, as an engine host does.

    What comes during a step is taken in when it ends. Gateways hear of it `link_delay_s` later.
    """

    def __init__(self, replica_id: str, config: FleetConfig, clock: VirtualClock) -> None:
        self.replica_id = replica_id
        self.is_leaving = False
        engine = config.engine
        self.hello = Hello(
            replica_id, 0, "clock", "1", b"", engine.block_size, engine.max_model_len,
            engine.max_num_seqs, engine.num_blocks, engine.max_num_batched_tokens,
        )  # fmt: skip
        self._config = config
        self._clock = clock
        self._slowness = 1 + config.speed_spread * Random(f"{config.seed}:{replica_id}").random()
        self._held = _Held()
        self._claims: frozenset[bytes] = frozenset()
        """Blocks that it held when it published last."""
        self._scheduler = Scheduler(engine, config.policy(), eos_token_ids=(), listener=self._held)
        windows = AdmissionWindows(engine.max_num_batched_tokens, engine.max_num_seqs, config.ramp_s)
        self._accounts = GatewayAccounts(windows)
        self._mailbox: deque[Callable[[], None]] = deque()
        self._plan: StepPlan | None = None
        self._counters: EngineCounters = self._scheduler.counters()
        self._hears: dict[str, Callable[[LinkMessage], None]] = {}
        self._told_at: dict[str, float] = {}
        for seconds, event in (
            (HEARTBEAT_S, self._beat),
            (LOOK_EVERY_S, self._look),
            (PUBLISHED_EVERY_S, self._publish),
        ):
            clock.every(seconds, event, until=lambda: self.has_ended)

    @property
    def has_ended(self) -> bool:
        """It was leaving, and nothing is left."""
        return self.is_leaving and not self._accounts.num_live and not self._mailbox

    def num_claimed_blocks(self, block_hashes: Sequence[bytes]) -> int:
        """What the prefix index would say: blocks of the chain's beginning, a multiple of `INDEX_EVERY`."""
        entries = indexed(block_hashes)
        return INDEX_EVERY * bisect_left(entries, True, key=lambda one: one not in self._claims)

    # --- what gateways call, as it arrives ---------------------------------------------------

    def attach(self, gateway_id: str, hear: Callable[[LinkMessage], None]) -> None:
        self._hears[gateway_id] = hear
        self._send(gateway_id, self.hello)
        self._mail(lambda: self._open(gateway_id))

    def submit(self, gateway_id: str, request: Request) -> bool:
        """False: it is leaving."""
        if not self.is_leaving:
            self._mail(lambda: self._add(gateway_id, request))
        return not self.is_leaving

    def abort(self, request_id: str) -> None:
        self._mail(lambda: self._deliver(self._scheduler.abort(request_id, self._clock.now)))

    def report(self, gateway_id: str, backlogs: Sequence[Backlog]) -> None:
        self._mail(lambda: self._accounts.report(gateway_id, backlogs))

    def leave(self) -> None:
        """It takes no more, and says so; what runs goes on."""
        self.is_leaving = True
        for gateway_id in self._hears:
            self._tell(gateway_id, News((), self._accounts.told(gateway_id)))

    # --- the engine ----------------------------------------------------------------------------

    def _mail(self, call: Callable[[], None]) -> None:
        self._mailbox.append(call)
        if self._plan is None:
            self._begin_step()

    def _begin_step(self) -> None:
        if self._mailbox:
            while self._mailbox:
                self._mailbox.popleft()()
            self._counters = self._scheduler.counters()
        if self._scheduler.has_work():
            self._plan = self._scheduler.schedule(self._clock.now)
            self._clock.after(self._slowness * self._config.step_time.of(self._plan), self._end_step)

    def _end_step(self) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        outputs = self._scheduler.update(plan, sampled(plan), self._clock.now)
        self._counters = self._scheduler.counters()
        self._deliver(outputs)
        self._begin_step()

    def _open(self, gateway_id: str) -> None:
        self._accounts.open(gateway_id, self._clock.now)
        self._deliver(())

    def _add(self, gateway_id: str, request: Request) -> None:
        self._accounts.add(gateway_id, request)
        self._scheduler.add(request, self._clock.now)

    # --- what gateways hear ----------------------------------------------------------------------

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        for gateway_id, news in self._accounts.news(outputs, self._clock.now).items():
            self._tell(gateway_id, news)

    def _tell(self, gateway_id: str, news: News) -> None:
        window = news.window if self._config.has_credit else None
        self._send(
            gateway_id, StepMessage(news.outputs, self._counters, window, self.is_leaving, news.served)
        )

    def _send(self, gateway_id: str, message: LinkMessage) -> None:
        self._told_at[gateway_id] = self._clock.now
        hear = self._hears[gateway_id]
        self._clock.after(self._config.link_delay_s, lambda: hear(message))

    def _beat(self) -> None:
        for gateway_id, told_at in self._told_at.items():
            if self._clock.now - told_at >= HEARTBEAT_S:
                self._tell(gateway_id, News((), self._accounts.told(gateway_id)))

    def _look(self) -> None:
        """Windows move with time, too."""
        if not self._scheduler.has_work():
            self._deliver(())

    def _publish(self) -> None:
        if self._claims != self._held.block_hashes:
            self._claims = frozenset(self._held.block_hashes)
