"""The choice of a replica: what each is thought to have of a prompt, what a policy is told, what is noted."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from cluster.choice import ReplicaCandidate, ReplicaChoice
from cluster.routed_prefixes import REMEMBERED_S, UNLIKE_REQUESTS
from cluster.routing import ReplicaLoad, RoutingPrompt

BLOCK = 16
PROMPT = tuple(b"block %d" % number for number in range(12))
"""Full blocks of a prompt of 200 tokens."""
NUM_TOKENS = 200
OTHER = tuple(b"other %d" % number for number in range(12))


class Told:
    """A policy that takes the replica that it is to, and remembers what it was told."""

    def __init__(self, takes: str = "a") -> None:
        self.takes = takes
        self.cached: dict[str, int] = {}
        self.prompt = RoutingPrompt(0)

    def choose(self, candidates: Sequence[ReplicaLoad], prompt: RoutingPrompt, rng: Random) -> str:
        self.cached = {one.replica_id: one.cached_tokens for one in candidates}
        self.prompt = prompt
        return self.takes


def candidate(replica_id: str = "a", hashes: Sequence[bytes] = PROMPT, claimed: int = 0) -> ReplicaCandidate:
    return ReplicaCandidate(ReplicaLoad(replica_id, 0, 0, 0), BLOCK, hashes, claimed)


def pair(claimed: int = 0, hashes: Sequence[bytes] = PROMPT) -> list[ReplicaCandidate]:
    """a, and b who claims something."""
    return [candidate("a", hashes), candidate("b", hashes, claimed)]


def test_the_policy_s_replica_is_chosen_with_what_it_is_thought_to_have_cached() -> None:
    policy = Told("b")
    chosen = ReplicaChoice(policy, Random(0)).choose(pair(claimed=4), NUM_TOKENS, 0.0)
    assert (chosen.replica_id, chosen.cached_tokens) == ("b", 64)
    assert policy.cached == {"a": 0, "b": 64}


def test_what_was_routed_just_now_counts_as_cached_there_as_long_as_it_is_remembered() -> None:
    choice = ReplicaChoice(Told("a"), Random(0))
    choice.choose(pair(), NUM_TOKENS, 0.0)
    assert choice.most_cached_tokens(pair(), NUM_TOKENS, REMEMBERED_S) == 192
    assert choice.most_cached_tokens([candidate("b")], NUM_TOKENS, REMEMBERED_S) == 0
    assert choice.most_cached_tokens(pair(), NUM_TOKENS, REMEMBERED_S + 0.01) == 0


def test_the_more_of_claim_and_routed_counts() -> None:
    choice = ReplicaChoice(Told("a"), Random(0))
    choice.choose([candidate("a", PROMPT[:4])], 64, 0.0)
    assert choice.most_cached_tokens([candidate("a", claimed=8)], NUM_TOKENS, 0.0) == 128
    assert choice.most_cached_tokens([candidate("a")], NUM_TOKENS, 0.0) == 64


def test_of_a_prompt_of_full_blocks_the_last_is_computed_whatever_is_cached() -> None:
    whole = [candidate("a", claimed=12)]
    assert ReplicaChoice(Told(), Random(0)).most_cached_tokens(whole, 12 * BLOCK, 0.0) == 11 * BLOCK


def test_a_replica_that_may_never_have_got_it_is_thought_to_have_nothing() -> None:
    choice = ReplicaChoice(Told("a"), Random(0))
    choice.choose(pair(), NUM_TOKENS, 0.0)
    choice.forget("a")
    assert choice.most_cached_tokens(pair(), NUM_TOKENS, 0.0) == 0


def test_nobody_has_anything_where_nobody_is() -> None:
    assert ReplicaChoice(Told(), Random(0)).most_cached_tokens([], NUM_TOKENS, 0.0) == 0


def test_the_policy_is_told_what_the_prompt_begins_with_and_how_many_begin_so() -> None:
    policy = Told("a")
    choice = ReplicaChoice(policy, Random(0))
    for hashes in (PROMPT[:4] + OTHER[4:], OTHER):
        choice.choose([candidate("a", hashes)], NUM_TOKENS, 0.0)
    choice.choose(pair(), NUM_TOKENS, 0.0)
    assert policy.prompt == RoutingPrompt(NUM_TOKENS, PROMPT[3], 1 / (2 + UNLIKE_REQUESTS)), (
        "as far as it is cached"
    )


def test_a_prompt_without_an_indexed_block_begins_with_nothing() -> None:
    policy = Told("a")
    ReplicaChoice(policy, Random(0)).choose([candidate("a", PROMPT[:3])], 50, 0.0)
    assert policy.prompt == RoutingPrompt(50)


def test_each_revision_s_replicas_know_the_prompt_by_their_own_chain() -> None:
    choice = ReplicaChoice(Told("b"), Random(0))
    choice.choose([candidate("a", OTHER), candidate("b", PROMPT)], NUM_TOKENS, 0.0)
    assert choice.most_cached_tokens([candidate("b", OTHER)], NUM_TOKENS, 0.0) == 0
    assert choice.most_cached_tokens([candidate("b", PROMPT)], NUM_TOKENS, 0.0) == 192
