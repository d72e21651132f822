"""Brings a request to a replica: waits for its turn, submits, and tries others while it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.api.errors import ApiError, bad_request, deadline_exceeded, no_capacity
from cluster.api.waiting import first_of
from cluster.chooser import Booking, Chooser
from cluster.hot_prefixes import HotPrefixes
from cluster.index.prefix_index import indexed
from cluster.link import LEAVING, OCCUPIED, LinkDown, NotReached, SubmitReply
from cluster.links import Links
from cluster.probation import Probation
from cluster.prompt_chains import PromptChains
from cluster.routed_request import RoutedRequest
from cluster.routing import ReplicaLoad
from cluster.submission import Part
from cluster.token_inbox import TokenInbox
from cluster.waiting_room import WaitingRoom

log = logging.getLogger("headrace.gateway")

OCCUPIED_PAUSE_S = 0.05
"""Until a suspect asks again: about as long as another one needs for a token."""


class Dispatcher:
    """Owns how each request fares, and which suspect is where. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        links: Links,
        chooser: Chooser,
        room: WaitingRoom,
        clock: Callable[[], float],
        hot: HotPrefixes[PromptChains],
        on_poisonous: Callable[[], None] = lambda: None,
    ) -> None:
        self._links = links
        self._chooser = chooser
        self._room = room
        self._clock = clock
        self._hot = hot
        self._on_poisonous = on_poisonous
        self._probation = Probation()
        self._freed = asyncio.Event()
        """Set and replaced whenever a replica is open to suspects that was not."""

    async def submit(self, request: RoutedRequest, part: Part) -> TokenInbox:
        """An inbox of the part. At its first submit a request waits for its turn.

        Raises `ApiError`: 503 if nobody is there to ask in the first place, if every try failed, or once a
        deadline is over; 400 if a replica refuses what is asked; 429 or 503 if it cannot wait here.
        """
        while request.attempts.may_submit:
            book = self._elsewhere if request.attempts.num_begun else self._first
            booking = await book(request, part)
            try:
                reply = await self._links.submit(booking.replica_id, booking.submission, request.wake)
            except LinkDown as reason:
                log.info("request %s: submit failed: %s", booking.submission.request_id, reason)
                self._chooser.forget(booking.replica_id)
                if not isinstance(reason, NotReached):  # it may have run there
                    self.lost(request, booking.replica_id)
                continue
            if isinstance(reply, TokenInbox):
                request.attempts.answered()
                return reply
            if reply.code == OCCUPIED:
                await self._stand_back(request)
            elif reply.code != LEAVING:
                raise _refusal(reply)
        raise no_capacity("No replica could take the request; try again shortly.")

    def computed(self, request: RoutedRequest) -> None:
        """Its prompt is, for the first time."""
        assert request.hash_root is not None, "it was submitted"
        hashes = request.chains.hashed(request.hash_root)
        self._hot.note(request.chains, indexed(hashes), self._clock())
        num_uncached_tokens = request.num_prompt_tokens - request.predicted_cached_tokens
        self._room.first_token_came(request.asked, num_uncached_tokens, self._clock() - request.turn_s)

    def progressed(self, request: RoutedRequest) -> None:
        """A new token came."""
        request.attempts.progressed()
        self.release(request)

    def lost(self, request: RoutedRequest, replica_id: str) -> None:
        """The replica that ran it died, or failed in a step of it.

        Raises `ApiError` if the request is what kills its replicas.
        """
        request.attempts.lost(replica_id)
        self.release(request)
        if request.attempts.is_poisonous:
            asked = request.asked
            log.error(
                "tenant %s: request %s is poisonous: its replicas died of it",
                asked.account.tenant.tenant_id,
                asked.request_id,
            )
            self._on_poisonous()
            raise _poisonous()

    def release(self, request: RoutedRequest) -> None:
        """It is under no suspicion, or ends. Safe at any time, any number of times."""
        if self._probation.release(request):
            self._freed.set()
            self._freed = asyncio.Event()

    async def _stand_back(self, suspect: RoutedRequest) -> None:
        """Another gateway's suspect is there; only its replica knows when that is cleared."""
        suspect.attempts.answered()
        self.release(suspect)
        await asyncio.sleep(OCCUPIED_PAUSE_S)

    async def _first(self, request: RoutedRequest, part: Part) -> Booking:
        if not self._links.candidates() and not self._room.is_start_expected:
            raise no_capacity("No replica can serve at the moment; try again shortly.")
        arrival = self._room.arrival(request.asked, self._chooser.most_cached_tokens(request))
        began_s = self._clock()
        booking = await self._room.turn(arrival, lambda there: self._chooser.book(request, there, part))
        request.turn_s = self._clock()
        request.waited_s = request.turn_s - began_s
        return booking

    async def _elsewhere(self, request: RoutedRequest, part: Part) -> Booking:
        """It has had its turn: it goes on, credit or not."""
        booking = self._chooser.book(request, await self._candidates(request, part), part)
        if request.attempts.is_suspect:
            self._probation.hold(booking.replica_id, request)
        return booking

    async def _candidates(self, request: RoutedRequest, part: Part) -> list[ReplicaLoad]:
        """Those that have not failed it, if there are any. Who was tried before waits for one."""
        attempts = request.attempts
        while True:
            if self._clock() >= request.asked.deadline:
                raise deadline_exceeded()
            if self._links.is_closed:
                raise no_capacity("This gateway is ending; try again.")
            candidates = self._links.candidates()
            if part.output_token_ids:
                candidates = self._of_its_revision(request, candidates)
            if attempts.is_suspect:
                candidates = self._open_to(request, candidates)
            if candidates:
                fresh = [one for one in candidates if one.replica_id not in attempts.tried]
                return fresh or candidates
            await first_of(self._links.arrival(), self._freed.wait())

    def _of_its_revision(self, request: RoutedRequest, candidates: list[ReplicaLoad]) -> list[ReplicaLoad]:
        """If any is left: better an answer of two revisions than none."""
        roots = {one.replica_id: self._links.hello(one.replica_id).hash_root for one in candidates}
        return [one for one in candidates if roots[one.replica_id] == request.hash_root] or candidates

    def _open_to(self, suspect: RoutedRequest, candidates: list[ReplicaLoad]) -> list[ReplicaLoad]:
        """Its siblings stay together."""
        place = self._probation.place_of(suspect)
        own = [one for one in candidates if one.replica_id == place]
        return own or [one for one in candidates if self._probation.is_open(one.replica_id, suspect)]


def _poisonous() -> ApiError:
    """OpenAI's SDKs would otherwise send it again, to the next replica."""
    return ApiError(
        500,
        "poisonous_request",
        "The replicas that worked on this request were lost one after the other; it is not tried again.",
        headers={"x-should-retry": "false"},
    )


def _refusal(reply: SubmitReply) -> ApiError:
    """What fits the context and not the pool is for the client to ask less of."""
    param = "max_tokens" if reply.code == "limit_never_satisfiable" else None
    message = reply.message or "The request was refused."
    return bad_request(message, param=param, code=reply.code or "refused")
