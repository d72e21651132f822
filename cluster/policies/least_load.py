"""Least load: the replica with the least work left, whatever is cached there.

Algorithm: work ahead = prompt tokens that are to be computed there before this request's
+ `output_tokens` for each request that is there, because a request that runs is still to make the rest of
its answer, and each token of it takes a place in a step as a prompt token does. What that rest is nobody
knows: on the mean half an answer, of which 256 tokens is the first guess. Ties are broken by the generator.
Failure mode: prompts that begin alike are computed on every replica, and every cache holds the same. And
answers far from `output_tokens` are weighed wrongly: longer ones let prompt tokens count for too much,
shorter ones for too little.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from cluster.routing import ReplicaLoad, RoutingPrompt, choose_least

OUTPUT_TOKENS = 128
"""What a request that is there is still to make, on the mean."""


def work_ahead(replica: ReplicaLoad, output_tokens: int) -> int:
    """Tokens still to be computed on the replica, as far as this gateway knows."""
    return replica.queued_tokens + replica.in_flight_tokens + output_tokens * replica.num_requests


class LeastLoad:
    def __init__(self, output_tokens: int = OUTPUT_TOKENS) -> None:
        self._output_tokens = output_tokens

    def choose(self, candidates: Sequence[ReplicaLoad], prompt: RoutingPrompt, rng: Random) -> str:
        return choose_least(
            candidates, lambda replica: work_ahead(replica, self._output_tokens), rng
        ).replica_id
