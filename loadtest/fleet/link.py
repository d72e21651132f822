"""A gateway's end of its link to one virtual replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cluster.admission_windows import full_window
from cluster.backlog import Backlog
from cluster.credit import Balance
from cluster.in_flight_load import InFlightLoad
from cluster.link import SUSPECT_AFTER_S, Hello, LinkMessage, StepMessage
from cluster.routing import ReplicaLoad
from engine.counters import EngineCounters
from engine.request import Request
from loadtest.fleet.call import Call
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.replica import VirtualReplica


class VirtualLink:
    """Owns what the gateway has there, and what it heard last.

    `on_message(link, message)` is called when one came, `on_refused(call)` when the replica
    leaves and did not take it, `on_hello(link)` before it may get any work.
    """

    def __init__(
        self,
        replica: VirtualReplica,
        gateway_id: str,
        clock: VirtualClock,
        delay_s: float,
        on_message: Callable[[VirtualLink, StepMessage], None],
        on_refused: Callable[[Call], None],
        on_hello: Callable[[VirtualLink], None],
    ) -> None:
        self.replica = replica
        self.calls: dict[str, Call] = {}
        """What runs there, by the request's id."""
        self.counters: EngineCounters | None = None
        self.balance = Balance()
        self._gateway_id = gateway_id
        self._clock = clock
        self._delay_s = delay_s
        self._on_message = on_message
        self._on_refused = on_refused
        self._on_hello = on_hello
        self._in_flight = InFlightLoad()
        self._full_window = full_window(replica.hello.max_num_batched_tokens, replica.hello.max_num_seqs)
        self._hello: Hello | None = None
        self._heard_at = -SUSPECT_AFTER_S
        self._is_leaving = False
        self._send(partial(replica.attach, gateway_id, self._hear))

    @property
    def can_work(self) -> bool:
        is_heard = self._clock.now - self._heard_at <= SUSPECT_AFTER_S
        return self._hello is not None and is_heard and not self._is_leaving

    def load(self) -> ReplicaLoad:
        hello = self.replica.hello
        part = self.balance.part_of(self._full_window)
        return ReplicaLoad.of(
            hello.replica_id, hello.max_num_seqs, self.counters, self._in_flight.tokens, part
        )

    def submit(self, request: Request, call: Call) -> None:
        self.calls[request.request_id] = call
        self.balance.outstanding.add(request)
        self._in_flight.routed(request.request_id, request.num_uncached_tokens)
        self._send(partial(self._arrive, request))

    def warm(self, request: Request) -> None:
        """What nobody asked for, in no credit."""
        self._send(partial(self._warm, request))

    def abort(self, request_id: str) -> None:
        """Nobody waits for it any more. It counts until the replica says that it is gone."""
        self.calls.pop(request_id, None)
        self._send(partial(self.replica.abort, request_id))

    def report(self, backlogs: Sequence[Backlog]) -> None:
        self._send(partial(self.replica.report, self._gateway_id, backlogs))

    def _send(self, call: Callable[[], None]) -> None:
        self._clock.after(self._delay_s, call)

    def _warm(self, request: Request) -> None:
        self.replica.submit(self._gateway_id, request)

    def _arrive(self, request: Request) -> None:
        is_accepted = self.replica.submit(self._gateway_id, request)
        self._clock.after(self._delay_s, partial(self._reply, request.request_id, is_accepted))

    def _reply(self, request_id: str, is_accepted: bool) -> None:
        if is_accepted:
            self._in_flight.accepted(request_id)
            return
        self._in_flight.drop(request_id)
        self.balance.outstanding.drop(request_id)
        if (call := self.calls.pop(request_id, None)) is not None:
            self._on_refused(call)

    def _hear(self, message: LinkMessage) -> None:
        self._heard_at = self._clock.now
        if isinstance(message, Hello):
            self._hello = message
            self.balance = Balance(message.max_num_batched_tokens)
            self._on_hello(self)
            return
        self.counters = message.counters
        self._is_leaving = message.is_leaving
        self._in_flight.reported()
        self.balance.hear(message.outputs, message.credit)
        for output in message.outputs:
            if output.finish_reason is not None:
                self._in_flight.drop(output.request_id)
        self._on_message(self, message)
