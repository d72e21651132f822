"""The choice of a replica: what each is thought to have cached of a prompt, and which one the policy takes.

Pure, and one for all: a gateway that serves books what it says (`chooser.py`), the fleet in virtual time
(`loadtest/fleet/`) routes by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from cluster.index.prefix_index import indexed
from cluster.routed_prefixes import RoutedPrefixes
from cluster.routing import ReplicaLoad, RoutingPolicy, RoutingPrompt


class ReplicaCandidate(NamedTuple):
    """A replica that may be chosen, and what is known of one prompt there."""

    load: ReplicaLoad
    block_size: int
    block_hashes: Sequence[bytes]
    """Of the prompt's full blocks, in the chain of the replica's revision."""
    claimed_blocks: int
    """Of the chain's beginning, as the prefix index said."""


class ReplicaChoice:
    """Owns what was routed in the last seconds. `now` is monotonic, in seconds."""

    def __init__(self, policy: RoutingPolicy, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._routed = RoutedPrefixes()

    def choose(
        self, candidates: Sequence[ReplicaCandidate], num_prompt_tokens: int, now: float
    ) -> ReplicaLoad:
        """One of `candidates`, of which there is at least one, with what it is thought to have cached.

        The prompt counts as routed there.
        """
        known = self._known(candidates, num_prompt_tokens, now)
        best = max(known, key=lambda one: one.load.cached_tokens)
        keys = indexed(best.block_hashes)
        share = self._routed.share(best.block_hashes, best.load.cached_tokens // best.block_size, now)
        prompt = RoutingPrompt(num_prompt_tokens, keys[0] if keys else b"", share)
        replica_id = self._policy.choose([one.load for one in known], prompt, self._rng)
        chosen = next(one for one in known if one.load.replica_id == replica_id)
        self._routed.note(replica_id, indexed(chosen.block_hashes), now)
        return chosen.load

    def most_cached_tokens(
        self, candidates: Sequence[ReplicaCandidate], num_prompt_tokens: int, now: float
    ) -> int:
        """Of the prompt, at the candidate that is thought to have the most; 0 if there is none."""
        known = self._known(candidates, num_prompt_tokens, now)
        return max((one.load.cached_tokens for one in known), default=0)

    def forget(self, replica_id: str) -> None:
        """What was routed there may never have come."""
        self._routed.forget(replica_id)

    def _known(
        self, candidates: Sequence[ReplicaCandidate], num_prompt_tokens: int, now: float
    ) -> list[ReplicaCandidate]:
        """Each with what it is thought to have cached: as claimed, or as routed there just now."""
        return [self._with_cached(one, num_prompt_tokens, now) for one in candidates]

    def _with_cached(self, one: ReplicaCandidate, num_prompt_tokens: int, now: float) -> ReplicaCandidate:
        routed = self._routed.num_blocks(one.load.replica_id, one.block_hashes, now)
        cacheable = (num_prompt_tokens - 1) // one.block_size
        blocks = min(max(one.claimed_blocks, routed), cacheable)
        return one._replace(load=replace(one.load, cached_tokens=blocks * one.block_size))
