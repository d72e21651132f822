"""Brings a request to a replica: chooses one, submits, and tries others while it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random

from msgspec.structs import replace

from cluster.api.errors import ApiError, bad_request, deadline_exceeded, no_capacity
from cluster.api.waiting import first_of
from cluster.attempts import Attempts
from cluster.generation import GenerationRequest
from cluster.index.prefix_index import indexed
from cluster.link import LEAVING, LinkDown, SubmitReply
from cluster.links import Links
from cluster.probation import Probation
from cluster.prompt_chains import PromptChains
from cluster.routed_prefixes import RoutedPrefixes
from cluster.routing import Prompt, ReplicaLoad, RoutingPolicy
from cluster.token_inbox import TokenInbox
from engine.request import Request

log = logging.getLogger("headrace.gateway")


class Journey:
    """One request on its way: what it asks for, what its replicas may have cached, how it fared so far."""

    def __init__(
        self, request: GenerationRequest, chains: PromptChains, claims: Mapping[int, int], wake: asyncio.Event
    ) -> None:
        self.request = request
        self.chains = chains
        self.claims = claims
        """Blocks of the prompt that each incarnation claims, as looked up when the request came."""
        self.attempts = Attempts()
        self.wake = wake
        self.hash_root: bytes | None = None
        """Of the revision that it began with."""
        self.predicted_cached_tokens = 0
        """Of the last submission."""


class Dispatcher:
    """Stateless but for what it routed in the last seconds. `clock` is monotonic, in seconds."""

    def __init__(self, links: Links, policy: RoutingPolicy, rng: Random, clock: Callable[[], float]) -> None:
        self._links = links
        self._policy = policy
        self._rng = rng
        self._clock = clock
        self._routed = RoutedPrefixes()
        self._probation = Probation()

    async def submit(
        self, journey: Journey, *, sibling: int = 0, n: int = 1, output_token_ids: tuple[int, ...] = ()
    ) -> TokenInbox:
        """An inbox of siblings `sibling` … `sibling` + `n` − 1, which go on behind `output_token_ids`.

        Raises `ApiError`: 503 if nobody is there to ask in the first place, if every try failed, or
        once the deadline is over; 400 if a replica refuses what is asked.
        """
        attempts = journey.attempts
        while attempts.may_submit:
            chosen = await self._choose(journey, len(output_token_ids))
            request = self._request(journey, chosen.replica_id, sibling, n, output_token_ids)
            uncached = len(request.prompt_token_ids) + len(output_token_ids) - chosen.cached_tokens
            try:
                reply = await self._links.submit(chosen.replica_id, request, uncached, journey.wake)
            except LinkDown as reason:
                log.info("request %s: submit failed: %s", request.request_id, reason)
                self._routed.forget(chosen.replica_id)
                continue
            if isinstance(reply, TokenInbox):
                attempts.accepted()
                journey.hash_root = journey.hash_root or self._links.hello(chosen.replica_id).hash_root
                journey.predicted_cached_tokens = chosen.cached_tokens
                self._routed.note(chosen.replica_id, indexed(request.block_hashes), self._clock())
                return reply
            if reply.code != LEAVING:
                raise _refusal(reply)
        raise no_capacity("No replica could take the request; try again shortly.")

    @property
    def num_suspects(self) -> int:
        """Requests on probation now."""
        return len(self._probation)

    def clear(self, journey: Journey) -> None:
        """A suspect made a token, or ended. Safe at any time, any number of times."""
        self._probation.release(journey)

    async def _choose(self, journey: Journey, num_output_tokens: int) -> ReplicaLoad:
        """Of those that have not failed it, if there are any. Who was tried once waits for a replica."""
        attempts = journey.attempts
        while True:
            if self._clock() >= journey.request.deadline:
                raise deadline_exceeded()
            candidates = self._candidates(journey)
            if num_output_tokens:
                candidates = self._of_its_revision(journey, candidates)
            if attempts.is_suspect:
                candidates = self._open_to(journey, candidates)
            if candidates:
                fresh = [one for one in candidates if one.replica_id not in attempts.tried]
                chosen = self._pick(fresh or candidates, journey, num_output_tokens)
                if attempts.is_suspect:
                    self._probation.hold(chosen.replica_id, journey)
                return chosen
            if not attempts.num_begun:
                raise no_capacity("No replica can serve at the moment; try again shortly.")
            await first_of(self._links.arrival(), self._probation.freed())

    def _of_its_revision(self, journey: Journey, candidates: list[ReplicaLoad]) -> list[ReplicaLoad]:
        """If any is left: better an answer of two revisions than none."""
        roots = {one.replica_id: self._links.hello(one.replica_id).hash_root for one in candidates}
        return [one for one in candidates if roots[one.replica_id] == journey.hash_root] or candidates

    def _open_to(self, suspect: Journey, candidates: list[ReplicaLoad]) -> list[ReplicaLoad]:
        """Its siblings stay together."""
        place = self._probation.place_of(suspect)
        own = [one for one in candidates if one.replica_id == place]
        return own or [one for one in candidates if self._probation.is_open(one.replica_id, suspect)]

    def _pick(self, candidates: list[ReplicaLoad], journey: Journey, num_output_tokens: int) -> ReplicaLoad:
        best = max(candidates, key=lambda one: one.cached_tokens)
        hello = self._links.hello(best.replica_id)
        hashes = journey.chains.of(hello).block_hashes
        keys = indexed(hashes)
        num_tokens = len(journey.request.prompt_token_ids) + num_output_tokens
        share = self._routed.share(hashes, best.cached_tokens // hello.block_size, self._clock())
        prompt = Prompt(num_tokens, keys[0] if keys else b"", share)
        chosen = self._policy.choose(candidates, prompt, self._rng)
        return next(one for one in candidates if one.replica_id == chosen)

    def _candidates(self, journey: Journey) -> list[ReplicaLoad]:
        """Each with what it is thought to have cached: as claimed, or as routed there just now."""
        now = self._clock()
        num_prompt_tokens = len(journey.request.prompt_token_ids)
        known = []
        for load in self._links.candidates():
            hello = self._links.hello(load.replica_id)
            hashes = journey.chains.of(hello).block_hashes
            claimed = journey.claims.get(hello.incarnation, 0)
            routed = self._routed.num_blocks(load.replica_id, hashes, now)
            cacheable = (num_prompt_tokens - 1) // hello.block_size
            blocks = min(max(claimed, routed), cacheable)
            known.append(replace(load, cached_tokens=blocks * hello.block_size))
        return known

    def _request(
        self, journey: Journey, replica_id: str, sibling: int, n: int, output_token_ids: tuple[int, ...]
    ) -> Request:
        """Each submission has an id of its own: nothing that concerns another one is mistaken for it."""
        asked = journey.request
        chain = journey.chains.of(self._links.hello(replica_id))
        attempt = journey.attempts.begin(replica_id)
        return Request(
            request_id=f"{asked.request_id}-{attempt}",
            prompt_token_ids=asked.prompt_token_ids,
            sampling=asked.sampling,
            hash_root=chain.root,
            block_hashes=chain.block_hashes,
            output_token_ids=output_token_ids,
            attempt=attempt,
            sibling=sibling,
            n=n,
        )


def _refusal(reply: SubmitReply) -> ApiError:
    """What fits the context and not the pool is for the client to ask less of."""
    param = "max_tokens" if reply.code == "limit_never_satisfiable" else None
    message = reply.message or "The request was refused."
    return bad_request(message, param=param, code=reply.code or "refused")
