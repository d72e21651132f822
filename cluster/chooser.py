"""Chooses a request's replica (`choice.py`), and books its place there until it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from cluster.choice import Candidate, Choice
from cluster.generation import PRIORITY
from cluster.links import Links
from cluster.routed_request import RoutedRequest
from cluster.routing import ReplicaLoad, RoutingPolicy
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
    """Books what its `Choice` says. `clock` is monotonic, in seconds."""

    def __init__(self, links: Links, policy: RoutingPolicy, rng: Random, clock: Callable[[], float]) -> None:
        self._links = links
        self._clock = clock
        self._choice = Choice(policy, rng)

    def book(self, request: RoutedRequest, loads: Sequence[ReplicaLoad], part: Part) -> Booking:
        """At one of these replicas, of which there is at least one."""
        candidates = self._candidates(request, loads)
        chosen = self._choice.choose(candidates, request.num_prompt_tokens, self._clock())
        request.predicted_cached_tokens = chosen.cached_tokens
        submission = self._submission(request, chosen, part)
        self._links.book(chosen.replica_id, submission)
        return Booking(chosen.replica_id, submission, self._links)

    def forget(self, replica_id: str) -> None:
        """What was routed there may never have come."""
        self._choice.forget(replica_id)

    def most_cached_tokens(self, request: RoutedRequest) -> int:
        """Of its prompt, at the replica that is thought to have the most."""
        candidates = self._candidates(request, self._links.candidates())
        return self._choice.most_cached_tokens(candidates, request.num_prompt_tokens, self._clock())

    def _candidates(self, request: RoutedRequest, loads: Sequence[ReplicaLoad]) -> list[Candidate]:
        hellos = [self._links.hello(load.replica_id) for load in loads]
        return [
            Candidate(
                load,
                hello.block_size,
                request.chains.of(hello).block_hashes,
                request.claims.get(hello.incarnation, 0),
            )
            for load, hello in zip(loads, hellos, strict=True)
        ]

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
