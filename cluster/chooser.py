"""Chooses a request's replica (`choice.py`), and books its place there until it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from cluster.choice import ReplicaCandidate, ReplicaChoice
from cluster.links import Links
from cluster.routed_request import RoutedRequest
from cluster.routing import ReplicaLoad, RoutingPolicy
from cluster.submission import Part, submission
from engine.request import Request


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
    """Books what its `ReplicaChoice` says. `clock` is monotonic, in seconds."""

    def __init__(self, links: Links, policy: RoutingPolicy, rng: Random, clock: Callable[[], float]) -> None:
        self._links = links
        self._clock = clock
        self._choice = ReplicaChoice(policy, rng)

    def book(self, request: RoutedRequest, loads: Sequence[ReplicaLoad], part: Part) -> Booking:
        """At one of these replicas, of which there is at least one."""
        candidates = self._candidates(request, loads)
        chosen = self._choice.choose(candidates, request.num_prompt_tokens, self._clock())
        request.predicted_cached_tokens = chosen.cached_tokens
        submitted = self._submission(request, chosen, part)
        self._links.book(chosen.replica_id, submitted)
        return Booking(chosen.replica_id, submitted, self._links)

    def forget(self, replica_id: str) -> None:
        """What was routed there may never have come."""
        self._choice.forget(replica_id)

    def most_cached_tokens(self, request: RoutedRequest) -> int:
        """Of its prompt, at the replica that is thought to have the most."""
        candidates = self._candidates(request, self._links.candidates())
        return self._choice.most_cached_tokens(candidates, request.num_prompt_tokens, self._clock())

    def _candidates(self, request: RoutedRequest, loads: Sequence[ReplicaLoad]) -> list[ReplicaCandidate]:
        hellos = [self._links.hello(load.replica_id) for load in loads]
        return [
            ReplicaCandidate(
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
        return submission(
            f"{asked.request_id}-{attempt}",
            asked.share,
            asked.prompt_token_ids,
            chain,
            asked.sampling,
            chosen.cached_tokens,
            part,
            attempt=attempt,
            is_suspect=request.attempts.is_suspect,
        )
