"""Which replica a request goes to: a pure function of what the gateway knows.

Algorithm: least token load = prompt tokens that the replica would have to prefill for this request
+ prompt tokens accepted there and not yet computed + what was routed and is not yet in its counters
+ one block for each request that is there; until a prefix index tells what is cached, all of the prompt
counts as uncached. Ties are broken by the given generator.
Failure mode: counters are as old as the link's last message (≤ 0.25 s when idle), so a burst inside
that time is spread by the in-flight term alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from engine.config import BLOCK_SIZE


class ReplicaLoad(msgspec.Struct, frozen=True, gc=False):
    """What one gateway knows of one replica now, in tokens and requests."""

    replica_id: str
    queued_tokens: int
    in_flight_tokens: int
    num_running: int
    cached_tokens: int = 0
    """Of this request's prompt, as far as the gateway knows."""


class Prompt(NamedTuple):
    """What a policy may know of the request that is to be routed."""

    num_tokens: int
    affinity_key: bytes = b""
    """Alike for prompts of one tenant that begin alike: hash of the first indexed block, empty if none."""


class RoutingPolicy(Protocol):
    def choose(self, candidates: Sequence[ReplicaLoad], prompt: Prompt, rng: Random) -> str:
        """The replica id of one of `candidates`, of which there is at least one."""
        ...


def token_load(replica: ReplicaLoad, prompt_tokens: int) -> int:
    uncached = max(prompt_tokens - replica.cached_tokens, 1)
    return uncached + replica.queued_tokens + replica.in_flight_tokens + BLOCK_SIZE * replica.num_running


def choose_replica(candidates: Sequence[ReplicaLoad], prompt_tokens: int, rng: Random) -> str | None:
    """The id of the candidate with the least token load, or None if there is no candidate."""
    if not candidates:
        return None
    loads = [token_load(replica, prompt_tokens) for replica in candidates]
    least = min(loads)
    best = [replica for replica, load in zip(candidates, loads, strict=True) if load == least]
    return rng.choice(best).replica_id
