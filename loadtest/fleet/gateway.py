"""A gateway in virtual time: a request's walk from its client to a replica, through production's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from math import ceil
from random import Random

from cluster.autoscaling.demand import DemandMeter, GatewayDemand
from cluster.backlog import Backlog, bounded
from cluster.generation import PRIORITY
from cluster.index.prefix_index import indexed
from cluster.link import StepMessage
from cluster.policies import routing_policy
from cluster.routed_prefixes import RoutedPrefixes
from cluster.routing import Prompt, ReplicaLoad
from cluster.waiting.arrival import Arrival
from cluster.waiting.fleet import Fleet
from cluster.waiting.shedding import Refused
from cluster.waiting.wait_estimate import WaitEstimator
from engine.request import Flow, Request, SamplingParams
from loadtest.fleet.call import Ask, Call
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.limits import Limits
from loadtest.fleet.link import VirtualLink
from loadtest.fleet.replica import VirtualReplica
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.queued import Queued

REPORT_EVERY_S = 0.1
NO_DEADLINE_S = 600.0
"""From arrival to the end of the answer. SDKs do not say when they will hang up."""


class VirtualGateway:
    """Owns its queue, its links, and what waits and runs for its clients.

    `on_wait(predicted_s, actual_s)` hears of each wait that ended.
    """

    def __init__(
        self,
        gateway_id: str,
        config: FleetConfig,
        clock: VirtualClock,
        ledger: MemoryLedger,
        on_wait: Callable[[float, float], None],
    ) -> None:
        self.gateway_id = gateway_id
        self.next_replica_s: float | None = None
        """When the next replica is expected, as the launcher tells."""
        self.limits = Limits(gateway_id, ledger, clock, config.num_gateways)
        self._config = config
        self._clock = clock
        rng = Random(f"{config.seed}:{gateway_id}")
        self._line = config.line(WaitEstimator(on_wait), rng, config.waiting)
        self._rng = rng
        self._policy = routing_policy(config.routing)
        self._routed = RoutedPrefixes()
        self._links: dict[str, VirtualLink] = {}
        self._waiting: dict[str, Call] = {}
        self._demand = DemandMeter()
        clock.every(REPORT_EVERY_S, self._tick)

    # --- who is there ------------------------------------------------------------------------

    def add(self, replica: VirtualReplica) -> None:
        self._links[replica.replica_id] = VirtualLink(
            replica, self.gateway_id, self._clock, self._config.link_delay_s, self._hear, self._route_anywhere
        )

    def remove(self, replica: VirtualReplica) -> None:
        """It has ended."""
        del self._links[replica.replica_id]
        self._routed.forget(replica.replica_id)

    def demand(self) -> GatewayDemand:
        tokens = sum(call.uncached_tokens for call in self._waiting.values())
        counters = {one: link.counters for one, link in self._links.items() if link.counters is not None}
        return self._demand.row(self._clock.now, tokens, len(self._waiting), counters)

    def _see(self) -> None:
        now = self._clock.now
        for replica_id, link in self._links.items():
            if link.counters is not None:
                self._line.estimator.rates.observe(replica_id, link.counters, now)
        there = [link for link in self._links.values() if link.can_work]
        fleet = Fleet(
            len(there),
            sum(link.num_seats for link in there),
            sum(link.free_seats for link in there),
            self.next_replica_s,
        )
        self._line.see(fleet, now)

    def _tick(self) -> None:
        self._see()
        for entry_id in self._line.expire(self._clock.now):
            self._refuse(self._waiting.pop(entry_id), Refused(503, "deadline_exceeded", None))
        backlogs = bounded(self._backlogs())
        for link in self._links.values():
            link.report(backlogs)
        self._pump()

    def _backlogs(self) -> Iterable[Backlog]:
        shares = sorted((call.ask.customer.share, call.uncached_tokens) for call in self._waiting.values())
        for share, group in groupby(shares, lambda one: one[0]):
            tokens = [tokens for _, tokens in group]
            yield Backlog(
                share.tenant_id, sum(tokens), len(tokens), share.weight, PRIORITY[share.service_class]
            )

    # --- coming in ---------------------------------------------------------------------------

    def ask(self, call: Call) -> None:
        """Its client has sent it. It ends by `Call.end`, whatever becomes of it."""
        now = self._clock.now
        self._see()
        call.uncached_tokens = len(call.ask.prompt_token_ids)
        if (refused := self._line.check(self._arrival(call), now)) is not None:
            self._demand.arrived(call.uncached_tokens, call.ask.max_tokens)
            self._refuse(call, refused)
            return
        if (limited := self.limits.reserve(call)) is not None:
            self._refuse(call, Refused(429, limited.kind, _whole(limited.retry_after_s)))
            return
        call.uncached_tokens -= self._most_cached(call.ask)
        arrival = self._arrival(call)
        self._demand.arrived(arrival.queued.input_service, call.ask.max_tokens)
        call.max_tokens = self._line.max_tokens(arrival.share, call.ask.max_tokens)
        outcome = self._line.offer(arrival, now)
        for shed in outcome.shed:
            self._refuse(self._waiting.pop(shed.entry_id), shed.told)
        if outcome.refused is not None:
            self._refuse(call, outcome.refused)
            return
        self._waiting[call.call_id] = call
        self._pump()

    def hang_up(self, call: Call) -> None:
        """Its client has left."""
        self._line.left(call.call_id)
        self._waiting.pop(call.call_id, None)
        for link in self._links.values():
            if call.call_id in link.calls:
                link.abort(call.call_id)
        self.limits.end(call)

    def _arrival(self, call: Call) -> Arrival:
        now, ask = self._clock.now, call.ask
        answer_by_s = now + NO_DEADLINE_S
        share = ask.customer.share
        return Arrival(
            entry_id=call.call_id,
            share=share,
            uncached_tokens=call.uncached_tokens,
            first_token_by_s=self._line.config.first_token_by_s(share.service_class, now, answer_by_s),
            answer_by_s=answer_by_s,
            cached_tokens=len(ask.prompt_token_ids) - call.uncached_tokens,
            max_queue_len=ask.customer.max_queue_len,
            claim=str(ask.number).encode(),
            is_return=call.tries > 0,
        )

    def _refuse(self, call: Call, told: Refused) -> None:
        if told.status == 503:
            self._demand.shed(call.uncached_tokens, call.ask.max_tokens)
        call.end(str(told.status), self._clock.now, reason=told.code, retry_after_s=told.retry_after_s)
        self.limits.end(call)

    # --- going on ------------------------------------------------------------------------------

    def _pump(self) -> None:
        while (arrival := self._line.next(self._clock.now, self._has_credit)) is not None:
            self._route(self._waiting.pop(arrival.entry_id), self._with_credit(arrival.uncached_tokens))

    def _has_credit(self, entry: Queued) -> bool:
        return bool(self._with_credit(entry.uncached_tokens))

    def _with_credit(self, num_uncached_tokens: int) -> list[VirtualLink]:
        return [
            link
            for link in self._links.values()
            if link.can_work and link.balance.has_credit(num_uncached_tokens)
        ]

    def _route_anywhere(self, call: Call) -> None:
        """It was let in before; it waits for no credit again."""
        self._route(call, [link for link in self._links.values() if link.can_work])

    def _route(self, call: Call, links: list[VirtualLink]) -> None:
        ask, now = call.ask, self._clock.now
        loads = [link.load(self._cached_tokens(link, ask)) for link in links]
        chosen = self._pick(ask, loads)
        self._routed.note(chosen.replica_id, indexed(ask.block_hashes), now)
        call.replica_id = chosen.replica_id
        request = Request(
            request_id=call.call_id,
            prompt_token_ids=ask.prompt_token_ids,
            sampling=SamplingParams(max_tokens=call.max_tokens, ignore_eos=True),
            hash_root=ask.customer.root,
            block_hashes=ask.block_hashes,
            priority=PRIORITY[ask.customer.service_class],
            flow=Flow(ask.customer.tenant_id, ask.customer.weight),
            num_uncached_tokens=len(ask.prompt_token_ids) - chosen.cached_tokens,
        )
        self._links[chosen.replica_id].submit(request, call)

    def _pick(self, ask: Ask, loads: list[ReplicaLoad]) -> ReplicaLoad:
        entries = indexed(ask.block_hashes)
        num_blocks = max(load.cached_tokens for load in loads) // self._config.engine.block_size
        share = self._routed.share(ask.block_hashes, num_blocks, self._clock.now)
        prompt = Prompt(len(ask.prompt_token_ids), entries[0] if entries else b"", share)
        chosen = self._policy.choose(loads, prompt, self._rng)
        return next(load for load in loads if load.replica_id == chosen)

    def _most_cached(self, ask: Ask) -> int:
        return max((self._cached_tokens(link, ask) for link in self._links.values()), default=0)

    def _cached_tokens(self, link: VirtualLink, ask: Ask) -> int:
        """As the index claims, if it can be asked, or as routed there just now."""
        replica = link.replica
        blocks = self._routed.num_blocks(replica.replica_id, ask.block_hashes, self._clock.now)
        if not self.limits.is_cut:
            blocks = max(blocks, replica.num_claimed_blocks(ask.block_hashes))
        block_size = self._config.engine.block_size
        return block_size * min(blocks, (len(ask.prompt_token_ids) - 1) // block_size)

    # --- what replicas tell --------------------------------------------------------------------

    def _hear(self, link: VirtualLink, message: StepMessage) -> None:
        now = self._clock.now
        for output in message.outputs:
            if output.timing is not None and output.timing.seat_s > 0:
                self._line.estimator.rates.ended(output.timing.seat_s, now)
            if (call := link.calls.get(output.request_id)) is None:
                continue
            if self._waiting:
                self._line.served(call.ask.customer.share, len(output.token_ids))
            call.take(output, now)
            if not call.is_live:
                del link.calls[output.request_id]
                self._demand.ended(len(call.token_times))
                self.limits.end(call)
        if message.served:
            self._line.served_elsewhere(message.served)
        self._pump()


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else ceil(seconds)
