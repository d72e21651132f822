"""Gateways that share one replica, in virtual time: windows, balances and scheduler are the production code.

A gateway is its queue and its balance; the replica is a `Scheduler` whose model is a clock, with the accounts
that an engine host keeps. What one says the other hears `DELAY_S` later. What comes during a step is taken in
when it ends, as the engine's thread does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from cluster.admission_windows import DIVIDED_EVERY_S, AdmissionWindows
from cluster.backlog import Backlog
from cluster.credit import Balance, Wanted
from cluster.gateway_accounts import GatewayAccounts, News
from engine.config import BLOCK_SIZE, EngineConfig
from engine.policy import FirstComeFirstServed
from engine.request import Flow, Request, RequestOutput, SamplingParams
from engine.scheduler import Scheduler
from engine.step import StepPlan
from loadtest.studies.virtual_engine import StepTime
from tests.builders import answer

DELAY_S = 0.005
SMALL_MODEL = StepTime(base_s=0.01, token_s=0.000_1)
MAX_MODEL_LEN = 4096


@dataclass(frozen=True)
class ReplicaConfig:
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    step_time: StepTime = SMALL_MODEL
    ramp_s: float = 0.0

    def scheduler(self) -> Scheduler:
        config = EngineConfig(
            num_blocks=2 * self.max_num_seqs * MAX_MODEL_LEN // BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_prefix_caching=False,
        )
        return Scheduler(config, FirstComeFirstServed(), eos_token_ids=())


def a_request(
    request_id: str, prompt_tokens: int, output_tokens: int, n: int = 1, flow_id: str = ""
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(0,) * prompt_tokens,
        sampling=SamplingParams(max_tokens=output_tokens, ignore_eos=True),
        hash_root=b"",
        n=n,
        flow=Flow(flow_id),
        num_uncached_tokens=prompt_tokens,
    )


def _wanted_by(request: Request) -> Wanted:
    return Wanted(request.num_uncached_tokens, request.flow.flow_id, request.priority)


class VirtualGateway:
    """Owns its queue, first come, first served. `is_limited` tells whether it heeds credit."""

    def __init__(self, gateway_id: str, cluster: VirtualGateways, is_limited: bool) -> None:
        self.gateway_id = gateway_id
        self._cluster = cluster
        self._is_limited = is_limited
        self.queue: deque[Request] = deque()
        self.balance = Balance(cluster.config.max_num_batched_tokens)

    def offer(self, requests: Iterable[Request]) -> None:
        self.queue.extend(requests)
        self.pump()

    def pump(self) -> None:
        while self.queue and (not self._is_limited or self.balance.has_credit(_wanted_by(self.queue[0]))):
            self._cluster.submit(self, self.queue.popleft())

    def hear(self, news: News) -> None:
        self.balance.hear(news.outputs, news.window)
        self.pump()

    def backlogs(self) -> tuple[Backlog, ...]:
        tokens = sum(request.num_uncached_tokens for request in self.queue)
        return (Backlog(self.gateway_id, tokens, sum(request.n for request in self.queue)),)


class VirtualGateways:
    """Owns the replica, its gateways and the clock."""

    def __init__(self, config: ReplicaConfig = ReplicaConfig()) -> None:
        self.config = config
        self.now = 0.0
        self.num_steps = 0
        self.gateways: dict[str, VirtualGateway] = {}
        self.there: dict[str, tuple[str, Request]] = {}
        """What the replica has, with its gateway, by id."""
        self.uncomputed: dict[str, int] = {}
        """Prompt tokens of those whose prompt is not computed."""
        self.on_taken_in: Callable[[], None] = lambda: None
        """Called whenever the replica has a request more."""
        self._windows = AdmissionWindows(config.max_num_batched_tokens, config.max_num_seqs, config.ramp_s)
        self._accounts = GatewayAccounts(self._windows)
        self._scheduler = config.scheduler()
        self._mailbox: deque[Callable[[], None]] = deque()
        self._plan: StepPlan | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    # --- gateways ----------------------------------------------------------------------------

    def attach(self, gateway_id: str, *, is_limited: bool = True) -> VirtualGateway:
        gateway = self.gateways[gateway_id] = VirtualGateway(gateway_id, self, is_limited)
        self._mail(lambda: self._open(gateway_id))
        self.at(self.now + DIVIDED_EVERY_S, lambda: self._report(gateway))
        return gateway

    def kill(self, gateway_id: str) -> None:
        """Its stream breaks, and the replica aborts what runs for it."""
        del self.gateways[gateway_id]
        self._mail(lambda: self._close(gateway_id))

    def abort(self, request_id: str) -> None:
        self.at(self.now + DELAY_S, lambda: self._mail(lambda: self._abort(request_id)))

    def submit(self, gateway: VirtualGateway, request: Request) -> None:
        gateway.balance.outstanding.add(request)
        self.at(self.now + DELAY_S, lambda: self._mail(lambda: self._add(gateway, request)))

    def _report(self, gateway: VirtualGateway) -> None:
        if self.gateways.get(gateway.gateway_id) is gateway:
            backlogs = gateway.backlogs()
            self.at(
                self.now + DELAY_S,
                lambda: self._mail(lambda: self._accounts.report(gateway.gateway_id, backlogs)),
            )
            self.at(self.now + DIVIDED_EVERY_S, lambda: self._report(gateway))

    # --- the replica -------------------------------------------------------------------------

    def _mail(self, call: Callable[[], None]) -> None:
        self._mailbox.append(call)
        if self._plan is None:
            self._take_mail()

    def _take_mail(self) -> None:
        while self._mailbox:
            self._mailbox.popleft()()
        if self._scheduler.has_work():
            self._plan = self._scheduler.schedule(self.now)
            self.num_steps += 1
            self.at(self.now + self.config.step_time.of(self._plan), self._end_step)

    def _end_step(self) -> None:
        assert self._plan is not None
        plan, self._plan = self._plan, None
        self._tell(self._scheduler.update(plan, answer(plan), self.now))
        self._take_mail()

    def _tell(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.uncomputed.pop(output.request_id, None)
        for gateway_id, news in self._accounts.news(outputs, self.now).items():
            gateway = self.gateways.get(gateway_id)
            if gateway is not None:
                self.at(self.now + DELAY_S, lambda gateway=gateway, news=news: gateway.hear(news))  # type: ignore[misc]
        for output in outputs:
            if output.request_id not in self._accounts:
                self.there.pop(output.request_id, None)

    def _open(self, gateway_id: str) -> None:
        self._accounts.open(gateway_id, self.now)
        self._tell([])

    def _close(self, gateway_id: str) -> None:
        self._accounts.close(gateway_id)
        for request_id in self._accounts.requests_of(gateway_id):
            self._abort(request_id)

    def _add(self, gateway: VirtualGateway, request: Request) -> None:
        if self.gateways.get(gateway.gateway_id) is not gateway:
            return  # its stream has ended: the submit is refused
        self._accounts.add(gateway.gateway_id, request)
        self._scheduler.add(request, self.now)
        self.there[request.request_id] = (gateway.gateway_id, request)
        self.uncomputed[request.request_id] = request.num_uncached_tokens
        self.on_taken_in()

    def _abort(self, request_id: str) -> None:
        if request_id in self._accounts:
            self._tell(self._scheduler.abort(request_id, self.now))

    # --- the clock ---------------------------------------------------------------------------

    def at(self, time: float, event: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._order), event))

    def is_busy(self) -> bool:
        gateways = self.gateways.values()
        return bool(self.there) or any(one.queue or one.balance.outstanding.requests for one in gateways)

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self._run_next()

    def run_out(self, within_s: float = 300.0) -> None:
        """Until nothing is left to do. Fails if that takes too long."""
        end_s = self.now + within_s
        while self.is_busy():
            assert self.now < end_s, "somebody still waits, or counts what has ended"
            self._run_next()

    def _run_next(self) -> None:
        self.now, _, event = heappop(self._events)
        event()
