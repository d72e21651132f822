"""One running request of a gateway: tokens as text, to the end, whatever becomes of the replica.

Tokens that came are kept. If their replica dies, or leaves and does not wait, the request goes on at
another one behind the last token that was received: the engine takes what is there as already
generated, and draws by output index, so the client sees one unbroken answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from cluster.api.errors import ApiError, no_capacity, tenant_disabled
from cluster.autoscaling.demand import DemandMeter
from cluster.dispatcher import Dispatcher
from cluster.generation import TextDelta, Usage
from cluster.link import LinkDown, LinksClosed, ReplicaLeft
from cluster.links import Links
from cluster.reservation import Reservation
from cluster.routed_request import RoutedRequest
from cluster.running import RunningRequest
from cluster.sibling_text import SiblingText
from cluster.submission import Part
from cluster.token_inbox import TokenInbox
from cluster.waiting_room import WaitingRoom
from engine.prefix_stats import PrefixStats
from engine.request import RequestOutput, Timing
from tenants.ledger.settlement import Outcome

FAILED_STEP = "engine_error"
"""Error code of requests that ended with a failed step: another replica may do better."""


class Observer(Protocol):
    """What is counted of generations; `cluster/telemetry.py` does."""

    def count_discarded(self, num_tokens: int) -> None: ...

    def count_resumed(self, reason: str) -> None: ...

    def count_prediction(self, predicted_tokens: int, actual_tokens: int) -> None: ...


class ClusterGeneration:
    def __init__(
        self,
        links: Links,
        dispatcher: Dispatcher,
        room: WaitingRoom,
        request: RoutedRequest,
        inbox: TokenInbox,
        texts: list[SiblingText],
        observer: Observer,
        reservation: Reservation,
        run: RunningRequest,
        demand: DemandMeter,
    ) -> None:
        self._links = links
        self._reservation = reservation
        self._run = run
        self._demand = demand
        run.on_ended = request.wake.set
        self._dispatcher = dispatcher
        self._room = room
        self._share = request.asked.share
        self._request = request
        self._inboxes = [inbox]
        """One, until siblings go on elsewhere behind tokens of their own."""
        self._texts = texts
        self._observer = observer
        self._outputs: list[list[int]] = [[] for _ in texts]
        """Token ids received, by sibling."""
        self._num_running = len(texts)
        self._blamed: set[LinkDown | TokenInbox] = set()
        """Deaths, and inboxes where a step failed: each is told by all siblings that were there."""
        self._cached_tokens: int | None = None
        self._lookup: PrefixStats | None = None
        self.timing: Timing | None = None
        self.replica_id = inbox.replica_id
        self.max_tokens, self.standing = reservation.max_tokens, reservation.standing
        self.waited_s = request.waited_s
        reservation.runs(lambda: self.usage)

    @property
    def usage(self) -> Usage:
        num_tokens = sum(text.num_tokens for text in self._texts)
        return Usage(self._request.num_prompt_tokens, num_tokens, self._cached_tokens or 0, self._lookup)

    async def deltas(self) -> AsyncIterator[TextDelta]:
        while self._num_running:
            yield self._delta(await self._next_output())

    def end(self, outcome: Outcome) -> None:
        self._dispatcher.release(self._request)
        if self._num_running:
            for inbox in self._inboxes:
                self._links.abort(inbox)
        if self._reservation.settle(outcome, self.usage):
            self._demand.ended(self.usage.completion_tokens)
        self._run.leave()

    async def _next_output(self) -> RequestOutput:
        while True:
            self._request.wake.clear()
            if self._run.is_ended:
                raise tenant_disabled()
            for inbox in tuple(self._inboxes):
                try:
                    output = inbox.take()
                except LinkDown as reason:
                    await self._go_on_elsewhere(inbox, reason)
                    break
                if output is None:
                    continue
                if output.error_code != FAILED_STEP:
                    return output
                await self._repeat_failed_step(inbox, output)
                break
            else:
                await self._request.wake.wait()

    def _delta(self, output: RequestOutput) -> TextDelta:
        self._note(output)
        if output.is_failure:
            raise ApiError(500, output.error_code or "aborted", "The engine could not finish this request.")
        text = self._texts[output.sibling]
        delta = text.delta(output)
        if delta.finish_reason is not None:
            self._num_running -= 1
            self._observer.count_discarded(text.num_discarded)
            for inbox in self._inboxes:  # a stop string: the engine knows nothing of it
                self._links.abort(inbox, output.sibling)
        return delta

    def _note(self, output: RequestOutput) -> None:
        if self._cached_tokens is None and output.num_cached_tokens is not None:
            self._cached_tokens, self._lookup = output.num_cached_tokens, output.lookup
            self._observer.count_prediction(self._request.predicted_cached_tokens, output.num_cached_tokens)
            if output.token_ids:
                self._dispatcher.computed(self._request)
        if output.timing is not None:
            self.timing = output.timing
        if output.token_ids:
            self._outputs[output.sibling] += output.token_ids
            self._room.served(self._share, len(output.token_ids))
            self._dispatcher.progressed(self._request)

    # --- another replica -------------------------------------------------------------------

    async def _go_on_elsewhere(self, inbox: TokenInbox, reason: LinkDown) -> None:
        """All siblings that were live there."""
        if isinstance(reason, LinksClosed):
            raise no_capacity("This gateway is ending; try again.")
        is_planned = isinstance(reason, ReplicaLeft)
        if not is_planned:
            self._blame(inbox.replica_id, reason)
        self._observer.count_resumed("left" if is_planned else "lost")
        self._inboxes.remove(inbox)
        await self._resubmit(inbox.live_siblings)

    async def _repeat_failed_step(self, inbox: TokenInbox, output: RequestOutput) -> None:
        self._note(output)
        self._blame(inbox.replica_id, inbox)
        self._observer.count_resumed("failed_step")
        await self._resubmit([output.sibling])

    def _blame(self, replica_id: str, event: LinkDown | TokenInbox) -> None:
        """Once for each event. Raises `ApiError` if the request is what kills its replicas."""
        if event in self._blamed:
            return
        self._blamed.add(event)
        self._dispatcher.lost(self._request, replica_id)

    async def _resubmit(self, siblings: list[int]) -> None:
        """Together while they have no token; then each behind its own."""
        is_new = not any(self._outputs[sibling] for sibling in siblings)
        parts = [(siblings[0], len(siblings))] if is_new else [(sibling, 1) for sibling in siblings]
        for sibling, n in parts:
            received = tuple(self._outputs[sibling])
            moved = await self._dispatcher.submit(self._request, Part(sibling, n, received))
            self._inboxes.append(moved)
            self.replica_id = moved.replica_id
