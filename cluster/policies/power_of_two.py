"""Power of two choices: of two replicas drawn at random the one with fewer requests.

Algorithm: two different candidates by the generator; fewer requests there wins, the first drawn at a tie.
With n replicas the fullest is O(log log n) above the mean instead of O(log n / log log n) for one draw.
Failure mode: it knows neither the lengths of prompts nor what is cached: a replica with one prompt of 100,000
tokens is taken for idle, and every cache comes to hold the same.
Source: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from cluster.routing import ReplicaLoad, RoutingPrompt


class PowerOfTwo:
    def choose(self, candidates: Sequence[ReplicaLoad], prompt: RoutingPrompt, rng: Random) -> str:
        drawn = rng.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=lambda replica: replica.num_requests).replica_id
