"""Chooses a request's replica, and books its place there until it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from cluster.generation import PRIORITY
from cluster.index.prefix_index import indexed
from cluster.links import Links
from cluster.routed_prefixes import RoutedPrefixes
from cluster.routed_request import RoutedRequest
from cluster.routing import Prompt, ReplicaLoad, RoutingPolicy
from engine.request import Flow, Request


class Part(NamedTuple):
    """Siblings `sibling` … `sibling` + `n` − 1 of a request, which go on behind `output_token_ids`."""

    sibling: int = 0
    n: int = 1
    output_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Booking:
    """A submission, and the replica whose credit is taken for it."""

    replica_id: str
    submission: Request
    links: Links

    def give_back(self) -> None:
        """It is not submitted after all."""
        self.links.unbook(self.replica_id, self.submission.request_id)


class Chooser:
    """Owns what was routed in the last seconds. `clock` is monotonic, in seconds."""

    def __init__(self, links: Links, policy: RoutingPolicy, rng: Random, clock: Callable[[], float]) -> None:
        self._links = links
        self._policy = policy
        self._rng = rng
        self._clock = clock
        self._recent = RoutedPrefixes()

    def book(self, request: RoutedRequest, candidates: Sequence[ReplicaLoad], part: Part) -> Booking:
        """At one of `candidates`, of which there is at least one."""
        chosen = self._pick(self._known(request, candidates), request, len(part.output_token_ids))
        request.predicted_cached_tokens = chosen.cached_tokens
        submission = self._submission(request, chosen, part)
        self._recent.note(chosen.replica_id, indexed(submission.block_hashes), self._clock())
        self._links.book(chosen.replica_id, submission)
        return Booking(chosen.replica_id, submission, self._links)

    def forget(self, replica_id: str) -> None:
        """What was routed there may never have come."""
        self._recent.forget(replica_id)

    def most_cached_tokens(self, request: RoutedRequest) -> int:
        """Of its prompt, at the replica that is thought to have the most."""
        known = self._known(request, self._links.candidates())
        return max((one.cached_tokens for one in known), default=0)

    def _pick(
        self, candidates: Sequence[ReplicaLoad], request: RoutedRequest, num_output_tokens: int
    ) -> ReplicaLoad:
        best = max(candidates, key=lambda one: one.cached_tokens)
        hello = self._links.hello(best.replica_id)
        hashes = request.chains.of(hello).block_hashes
        keys = indexed(hashes)
        share = self._recent.share(hashes, best.cached_tokens // hello.block_size, self._clock())
        prompt = Prompt(request.num_prompt_tokens + num_output_tokens, keys[0] if keys else b"", share)
        chosen = self._policy.choose(candidates, prompt, self._rng)
        return next(one for one in candidates if one.replica_id == chosen)

    def _known(self, request: RoutedRequest, loads: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        """Each with what it is thought to have cached: as claimed, or as routed there just now."""
        now = self._clock()
        known = []
        for load in loads:
            hello = self._links.hello(load.replica_id)
            claimed = request.claims.get(hello.incarnation, 0)
            recent = self._recent.num_blocks(load.replica_id, request.chains.of(hello).block_hashes, now)
            cacheable = (request.num_prompt_tokens - 1) // hello.block_size
            blocks = min(max(claimed, recent), cacheable)
            known.append(replace(load, cached_tokens=blocks * hello.block_size))
        return known

    def _submission(self, request: RoutedRequest, chosen: ReplicaLoad, part: Part) -> Request:
        """Each one has an id of its own: nothing that concerns another one is mistaken for it."""
        asked, hello = request.asked, self._links.hello(chosen.replica_id)
        request.hash_root = request.hash_root or hello.hash_root
        chain = request.chains.of(hello)
        attempt = request.attempts.begin(chosen.replica_id)
        num_tokens = request.num_prompt_tokens + len(part.output_token_ids)
        return Request(
            is_suspect=request.attempts.is_suspect,
            request_id=f"{asked.request_id}-{attempt}",
            prompt_token_ids=asked.prompt_token_ids,
            sampling=asked.sampling,
            hash_root=chain.root,
            block_hashes=chain.block_hashes,
            branch=chain.branch,
            output_token_ids=part.output_token_ids,
            attempt=attempt,
            sibling=part.sibling,
            n=part.n,
            priority=PRIORITY[asked.service_class],
            flow=Flow(asked.account.tenant.tenant_id, asked.account.terms.weight),
            num_uncached_tokens=num_tokens - chosen.cached_tokens,
        )
