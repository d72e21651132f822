"""Brings a request to a replica: chooses one, submits, and tries others while it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random

from msgspec.structs import replace

from cluster.api.errors import ApiError, bad_request, deadline_exceeded, no_capacity
from cluster.api.waiting import first_of
from cluster.index.prefix_index import indexed
from cluster.link import LEAVING, OCCUPIED, LinkDown, NotReached, SubmitReply
from cluster.links import Links
from cluster.probation import Probation
from cluster.routed_prefixes import RoutedPrefixes
from cluster.routed_request import RoutedRequest
from cluster.routing import Prompt, ReplicaLoad, RoutingPolicy
from cluster.token_inbox import TokenInbox
from engine.request import Flow, Request
from tenants.terms import ServiceClass

log = logging.getLogger("headrace.gateway")

PRIORITY: Mapping[ServiceClass, int] = {"interactive": 0, "batch": 1}
"""A class as the engine knows it."""
OCCUPIED_PAUSE_S = 0.05
"""Until a suspect asks again: about as long as another one needs for a token."""


class Dispatcher:
    """Owns how each request fares, what was routed in the last seconds, and which suspect is where.

    `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        links: Links,
        policy: RoutingPolicy,
        rng: Random,
        clock: Callable[[], float],
        on_poisonous: Callable[[], None] = lambda: None,
    ) -> None:
        self._links = links
        self._on_poisonous = on_poisonous
        self._policy = policy
        self._rng = rng
        self._clock = clock
        self._recent = RoutedPrefixes()
        self._probation = Probation()
        self._freed = asyncio.Event()
        """Set and replaced whenever a replica is open to suspects that was not."""

    async def submit(
        self, request: RoutedRequest, *, sibling: int = 0, n: int = 1, output_token_ids: tuple[int, ...] = ()
    ) -> TokenInbox:
        """An inbox of siblings `sibling` … `sibling` + `n` − 1, which go on behind `output_token_ids`.

        Raises `ApiError`: 503 if nobody is there to ask in the first place, if every try failed, or
        once the deadline is over; 400 if a replica refuses what is asked.
        """
        while request.attempts.may_submit:
            chosen = await self._choose(request, len(output_token_ids))
            submission = self._submission(request, chosen.replica_id, sibling, n, output_token_ids)
            uncached = request.num_prompt_tokens + len(output_token_ids) - chosen.cached_tokens
            request.predicted_cached_tokens = chosen.cached_tokens
            self._recent.note(chosen.replica_id, indexed(submission.block_hashes), self._clock())
            try:
                reply = await self._links.submit(chosen.replica_id, submission, uncached, request.wake)
            except LinkDown as reason:
                log.info("request %s: submit failed: %s", submission.request_id, reason)
                self._recent.forget(chosen.replica_id)
                if not isinstance(reason, NotReached):  # it may have run there
                    self.lost(request, chosen.replica_id)
                continue
            if isinstance(reply, TokenInbox):
                request.attempts.answered()
                return reply
            if reply.code == OCCUPIED:
                await self._stand_back(request)
            elif reply.code != LEAVING:
                raise _refusal(reply)
        raise no_capacity("No replica could take the request; try again shortly.")

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

    async def _choose(self, request: RoutedRequest, num_output_tokens: int) -> ReplicaLoad:
        """Of those that have not failed it, if there are any. Who was tried once waits for a replica."""
        attempts = request.attempts
        while True:
            if self._clock() >= request.asked.deadline:
                raise deadline_exceeded()
            if self._links.is_closed:
                raise no_capacity("This gateway is ending; try again.")
            candidates = self._candidates(request)
            if num_output_tokens:
                candidates = self._of_its_revision(request, candidates)
            if attempts.is_suspect:
                candidates = self._open_to(request, candidates)
            if candidates:
                fresh = [one for one in candidates if one.replica_id not in attempts.tried]
                chosen = self._pick(fresh or candidates, request, num_output_tokens)
                if attempts.is_suspect:
                    self._probation.hold(chosen.replica_id, request)
                return chosen
            if not attempts.num_begun:
                raise no_capacity("No replica can serve at the moment; try again shortly.")
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

    def _pick(
        self, candidates: list[ReplicaLoad], request: RoutedRequest, num_output_tokens: int
    ) -> ReplicaLoad:
        best = max(candidates, key=lambda one: one.cached_tokens)
        hello = self._links.hello(best.replica_id)
        hashes = request.chains.of(hello).block_hashes
        keys = indexed(hashes)
        share = self._recent.share(hashes, best.cached_tokens // hello.block_size, self._clock())
        prompt = Prompt(request.num_prompt_tokens + num_output_tokens, keys[0] if keys else b"", share)
        chosen = self._policy.choose(candidates, prompt, self._rng)
        return next(one for one in candidates if one.replica_id == chosen)

    def _candidates(self, request: RoutedRequest) -> list[ReplicaLoad]:
        """Each with what it is thought to have cached: as claimed, or as routed there just now."""
        now = self._clock()
        known = []
        for load in self._links.candidates():
            hello = self._links.hello(load.replica_id)
            claimed = request.claims.get(hello.incarnation, 0)
            recent = self._recent.num_blocks(load.replica_id, request.chains.of(hello).block_hashes, now)
            cacheable = (request.num_prompt_tokens - 1) // hello.block_size
            blocks = min(max(claimed, recent), cacheable)
            known.append(replace(load, cached_tokens=blocks * hello.block_size))
        return known

    def _submission(
        self,
        request: RoutedRequest,
        replica_id: str,
        sibling: int,
        n: int,
        output_token_ids: tuple[int, ...],
    ) -> Request:
        """Each one has an id of its own: nothing that concerns another one is mistaken for it."""
        hello = self._links.hello(replica_id)
        request.hash_root = request.hash_root or hello.hash_root
        chain = request.chains.of(hello)
        attempt = request.attempts.begin(replica_id)
        account = request.asked.account
        return Request(
            is_suspect=request.attempts.is_suspect,
            request_id=f"{request.asked.request_id}-{attempt}",
            prompt_token_ids=request.asked.prompt_token_ids,
            sampling=request.asked.sampling,
            hash_root=chain.root,
            block_hashes=chain.block_hashes,
            branch=chain.branch,
            output_token_ids=output_token_ids,
            attempt=attempt,
            sibling=sibling,
            n=n,
            priority=PRIORITY[account.terms.service_class],
            flow=Flow(account.tenant.tenant_id, account.terms.weight),
        )


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
