"""Which replica a request goes to: what a policy is told, what it answers.

The policies are in `cluster/policies/`, one small file each. All are pure: they see what the gateway knows
of its replicas now, and are given their randomness.

Sessions need no stickiness. All that a replica keeps from one request to the next is KV under block
hashes, so what a follow-up can gain is its cached prefix: a conversation repeats its own text, and where
its blocks are is looked up for each request. A session whose requests have no text in common would gain
nothing at the replica that it was at before, and a pin would only take the choice from the load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Literal, NamedTuple, Protocol

import msgspec

from engine.counters import EngineCounters

Routing = Literal["token-load", "round-robin", "least-load", "power-of-two", "affinity"]


class ReplicaLoad(msgspec.Struct, frozen=True, gc=False):
    """What one gateway knows of one replica now, in tokens and requests."""

    replica_id: str
    queued_tokens: int
    """Prompt tokens accepted there and not yet computed, as it last told."""
    in_flight_tokens: int
    """Uncached prompt tokens that this gateway routed there and that are not in its counters yet."""
    num_running: int
    """Requests that run or wait there, as it last told."""
    cached_tokens: int = 0
    """Of this request's prompt, as far as the gateway knows."""
    num_in_flight: int = 0
    """Requests that this gateway routed there and that are not in its counters yet."""
    num_seats: int = 0
    """Requests that it can run at once."""
    part: float = 1.0
    """Of what it can do, what this gateway may have."""

    @classmethod
    def of(
        cls,
        replica_id: str,
        num_seats: int,
        counters: EngineCounters | None,
        in_flight: Mapping[str, int],
        part: float = 1.0,
    ) -> ReplicaLoad:
        """`counters` as it last told; `in_flight` holds the uncached tokens of each request by its id."""
        return cls(
            replica_id=replica_id,
            queued_tokens=counters.queued_tokens if counters else 0,
            in_flight_tokens=sum(in_flight.values()),
            num_running=counters.requests_running + counters.requests_waiting if counters else 0,
            num_in_flight=len(in_flight),
            num_seats=num_seats,
            part=part,
        )

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_in_flight

    @property
    def free_seats(self) -> int:
        """What is on its way takes one, too."""
        return max(0, self.num_seats - self.num_requests)


class RoutingPrompt(NamedTuple):
    """What a policy may know of the request that is to be routed."""

    num_tokens: int
    affinity_key: bytes = b""
    """Alike for prompts of one tenant that begin alike: hash of the first indexed block, empty if none."""
    share: float = 0.0
    """Part of the traffic, in [0, 1), that begins with as much of the prompt as some candidate has cached."""


class RoutingPolicy(Protocol):
    def choose(self, candidates: Sequence[ReplicaLoad], prompt: RoutingPrompt, rng: Random) -> str:
        """The replica id of one of `candidates`, of which there is at least one."""
        ...


def choose_least(
    candidates: Sequence[ReplicaLoad], cost: Callable[[ReplicaLoad], int], rng: Random
) -> ReplicaLoad:
    """The candidate that costs least; of several, one by `rng`."""
    costs = [cost(replica) for replica in candidates]
    least = min(costs)
    return rng.choice([replica for replica, one in zip(candidates, costs, strict=True) if one == least])
