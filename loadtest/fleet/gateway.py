"""A gateway in virtual time: a request's walk from its client to a replica, through production's parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from random import Random
from typing import NamedTuple

from cluster.autoscaling.demand import DemandMeter, GatewayDemand
from cluster.choice import ReplicaCandidate, ReplicaChoice
from cluster.fleet_watch import LOOK_EVERY_S, FleetWatch
from cluster.link import StepMessage
from cluster.policies import routing_policy
from cluster.prompt_chains import Chain
from cluster.routing import ReplicaLoad
from cluster.submission import Part, submission
from cluster.waiting.arrival import Arrival, wanted_by
from cluster.waiting.shedding import Rejection
from cluster.waiting.wait_estimate import WaitEstimator
from engine.request import SamplingParams
from loadtest.fleet.call import Call
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.limits import VirtualLimits
from loadtest.fleet.link import VirtualLink
from loadtest.fleet.links import VirtualLinks
from loadtest.fleet.replica import VirtualReplica
from loadtest.fleet.warming import VirtualWarming
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.queued import Queued

NO_DEADLINE_S = 600.0
"""From arrival to the end of the answer. SDKs do not say when they will hang up."""


class _Waiter(NamedTuple):
    arrival: Arrival
    call: Call


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
        self.limits = VirtualLimits(gateway_id, ledger, clock, config.num_gateways)
        self._config = config
        self._clock = clock
        rng = Random(f"{config.seed}:{gateway_id}")
        self._line = config.line(WaitEstimator(on_wait), rng, config.waiting)
        self._choice = ReplicaChoice(routing_policy(config.routing), rng)
        self._links = VirtualLinks()
        self._warming = VirtualWarming(gateway_id, config.warm_prefixes, clock)
        self._watch = FleetWatch(
            self._line,
            self._links,
            lambda: clock.now,
            lambda: self.next_replica_s,
            num_gateways=config.num_gateways,
        )
        self._waiting: dict[str, _Waiter] = {}
        self._elsewhere: dict[str, Call] = {}
        """Had their turn, at a replica that leaves: they go on at the next that takes work, credit or not."""
        self._demand = DemandMeter()
        clock.every(LOOK_EVERY_S, self._tick)

    # --- who is there ------------------------------------------------------------------------

    def add(self, replica: VirtualReplica) -> None:
        delay_s = self._config.link_delay_s
        self._links.add(
            VirtualLink(
                replica, self.gateway_id, self._clock, delay_s, self._hear, self._go_elsewhere, self._greet
            )
        )

    def _greet(self, link: VirtualLink) -> None:
        others = [one for one in self._links.candidates() if one.replica_id != link.replica.replica_id]
        self._warming.greet(link, len(others))

    def remove(self, replica: VirtualReplica) -> None:
        """It has ended."""
        self._links.remove(replica.replica_id)
        self._choice.forget(replica.replica_id)
        self._warming.forget(replica.replica_id)

    def demand(self) -> GatewayDemand:
        tokens = sum(waiter.arrival.uncached_tokens for waiter in self._waiting.values())
        return self._demand.row(self._clock.now, tokens, len(self._waiting), self._links.states())

    def _tick(self) -> None:
        self._watch.look()
        self._end_late()
        self._watch.report(waiter.arrival for waiter in self._waiting.values())
        self._pump()

    # --- coming in ---------------------------------------------------------------------------

    def ask(self, call: Call) -> None:
        """Its client has sent it. It ends by `Call.end`, whatever becomes of it."""
        now, ask = self._clock.now, call.ask
        call.max_tokens = self._line.max_tokens(ask.customer.share, ask.max_tokens)
        self._watch.look_if_due()
        if (refused := self._line.check(self._arrival(call), now)) is not None:
            call.visit = self._demand.arrived(self._arrival(call), call.max_tokens, now)
            self._refuse(call, refused)
            return
        if (limited := self.limits.reserve(call)) is not None:
            self._refuse(call, Rejection(429, limited.kind, _whole(limited.retry_after_s)))
            return
        self._look_up(call)
        call.visit = self._demand.arrived(self._arrival(call), call.max_tokens, now)
        self._offer(call)

    def _look_up(self, call: Call) -> None:
        """What replicas have of its prompt: as the index claims, if it can be asked, or as routed there."""
        if not self.limits.is_cut:
            call.claims = self._links.claims(call.ask.block_hashes)
        candidates = self._candidates(call, self._links.candidates())
        call.predicted_cached_tokens = self._choice.most_cached_tokens(
            candidates, call.ask.num_prompt_tokens, self._clock.now
        )

    def _offer(self, call: Call) -> None:
        arrival = self._arrival(call)
        refused, shed = self._line.offer(arrival, self._clock.now)
        for victim in shed:
            self._refuse(self._waiting.pop(victim.entry_id).call, victim.told)
        if refused is not None:
            self._refuse(call, refused)
            return
        self._waiting[call.call_id] = _Waiter(arrival, call)
        self._pump()

    def hang_up(self, call: Call) -> None:
        """Its client has left."""
        self._line.left(call.call_id)
        self._waiting.pop(call.call_id, None)
        self._elsewhere.pop(call.call_id, None)
        self._links.abort(call.call_id)
        self.limits.end(call)

    def _arrival(self, call: Call) -> Arrival:
        now, ask = self._clock.now, call.ask
        share, answer_by_s = ask.customer.share, now + NO_DEADLINE_S
        return Arrival(
            entry_id=call.call_id,
            share=share,
            uncached_tokens=ask.num_prompt_tokens - call.predicted_cached_tokens,
            first_token_by_s=self._line.config.first_token_by_s(share.service_class, now, answer_by_s),
            answer_by_s=answer_by_s,
            cached_tokens=call.predicted_cached_tokens,
            max_queue_len=ask.customer.max_queue_len,
            claim=str(ask.number).encode(),
            is_return=call.tries > 0,
        )

    # --- going away ----------------------------------------------------------------------------

    def _end_late(self) -> None:
        now, late = self._clock.now, Rejection(503, "deadline_exceeded", None)
        for entry_id in self._line.expire(now):
            self._refuse(self._waiting.pop(entry_id).call, late)
        for call in list(self._elsewhere.values()):
            if now >= call.sent_at + NO_DEADLINE_S:
                self._refuse(self._elsewhere.pop(call.call_id), late)

    def _refuse(self, call: Call, told: Rejection) -> None:
        if call.visit is not None:
            is_shed = told.status == 503
            self._demand.turned_away(call.visit, self._clock.now, told.retry_after_s, is_shed=is_shed)
        call.end(str(told.status), self._clock.now, reason=told.code, retry_after_s=told.retry_after_s)
        self.limits.end(call)

    # --- going on ------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._elsewhere and (there := self._links.candidates()):
            self._route(self._elsewhere.pop(next(iter(self._elsewhere))), there)
        while (arrival := self._line.next(self._clock.now, self._has_credit)) is not None:
            call = self._waiting.pop(arrival.entry_id).call
            call.turn_s = self._clock.now
            self._route(call, self._links.with_credit(wanted_by(arrival.queued)))

    def _has_credit(self, entry: Queued) -> bool:
        return bool(self._links.with_credit(wanted_by(entry)))

    def _go_elsewhere(self, call: Call) -> None:
        """The replica that it was sent to leaves."""
        self._elsewhere[call.call_id] = call
        self._pump()

    def _route(self, call: Call, there: Sequence[ReplicaLoad]) -> None:
        ask = call.ask
        chosen = self._choice.choose(self._candidates(call, there), ask.num_prompt_tokens, self._clock.now)
        call.replica_id = chosen.replica_id
        request = submission(
            call.call_id,
            ask.customer.share,
            ask.prompt_token_ids,
            Chain(ask.customer.root, ask.block_hashes),
            SamplingParams(max_tokens=call.max_tokens, ignore_eos=True),
            chosen.cached_tokens,
            Part(),
        )
        self._links.submit(chosen.replica_id, request, call)

    def _candidates(self, call: Call, there: Sequence[ReplicaLoad]) -> list[ReplicaCandidate]:
        block_size, hashes = self._config.engine.block_size, call.ask.block_hashes
        return [
            ReplicaCandidate(load, block_size, hashes, call.claims.get(load.replica_id, 0)) for load in there
        ]

    # --- what replicas tell --------------------------------------------------------------------

    def _hear(self, link: VirtualLink, message: StepMessage) -> None:
        now = self._clock.now
        for output in message.outputs:
            if self._warming.hear(link, output):
                continue
            if output.timing is not None and output.timing.seat_s > 0:
                self._line.estimator.rates.ended(output.timing.seat_s, now)
            if (call := link.calls.get(output.request_id)) is None:
                continue
            if self._waiting:
                self._line.served(call.ask.customer.share, len(output.token_ids))
            if output.token_ids and not call.token_times:
                self._first_token_came(call)
            call.take(output, now)
            if output.num_cached_tokens is not None and output.token_ids:
                self._warming.note(call.ask)
            if not call.is_live:
                del link.calls[output.request_id]
                self._demand.ended(len(call.token_times))
                self.limits.end(call)
        if message.served:
            self._line.served_elsewhere(message.served)
        self._pump()

    def _first_token_came(self, call: Call) -> None:
        uncached_tokens = call.ask.num_prompt_tokens - call.predicted_cached_tokens
        after_turn_s = self._clock.now - call.turn_s
        self._line.estimator.first_token_came(call.ask.customer.share, uncached_tokens, after_turn_s)


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else ceil(seconds)
