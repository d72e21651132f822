"""What one tenant asks for changes nothing that another can see: no block, no cached token, no step."""

from __future__ import annotations

from random import Random

import pytest

from tests.cluster.tenants_on_one_engine import ANSWER, OneEngine

NUM_PAIRS = 2_000
NUM_PAIRS_IN_SOAK = 100_000
BLOCK_SIZE = 4
VOCABULARY = range(100, 2**31)
"""So many that no two new prompts begin alike by chance."""


class Pairs:
    """Pairs of requests of two tenants with equal prompts on one engine; the second one's alone on another.

    The prompts follow from the seed, and often repeat one of the last eight: a tenant finds its own blocks,
    and nothing of the other. The pools hold some thirty pairs, so that none of those was evicted.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._together = OneEngine(num_blocks=401)
        self._alone = OneEngine(num_blocks=401)
        self._asked: list[tuple[int, ...]] = []
        self.num_own_hits = 0
        self.num_diverged = 0

    def check_next(self) -> None:
        prompt, output = self._next_prompt()
        first = self._together.request("acme", prompt)
        second = self._together.request("zeta", prompt, output=output)
        if self._random.random() < 0.5:
            one, other = self._together.run(first, second)
        else:
            (one,), (other,) = self._together.run(first), self._together.run(second)
        (alone,) = self._alone.run(second)
        assert not one.foreign_blocks | other.foreign_blocks, "two tenants share a block"
        assert other.cached_tokens == alone.cached_tokens, "another tenant's prompt was found cached"
        assert other.scheduled == alone.scheduled, "another tenant's prompt shows in the steps"
        assert other.diverged_at == alone.diverged_at, "another tenant's prompt shows in the reason"
        assert other.token_ids == alone.token_ids
        self.num_own_hits += bool(other.cached_tokens)
        self.num_diverged += other.diverged_at is not None

    def _next_prompt(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Mostly new; else one of the last again, a little changed, or going on; and what is resumed."""
        random = self._random
        if self._asked and random.random() < 0.3:
            prompt = self._changed(random.choice(self._asked[-8:]))
        else:
            prompt = tuple(random.choices(VOCABULARY, k=random.randint(BLOCK_SIZE + 1, 24)))
        self._asked.append(prompt)
        return prompt, ANSWER[:2] if random.random() < 0.1 else ()

    def _changed(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        if self._random.random() < 0.5:
            return prompt + self._random.choice(((), ANSWER[:4], (77,)))
        at = self._random.randrange(len(prompt))
        return (*prompt[:at], self._random.choice(VOCABULARY), *prompt[at + 1 :])


def check_pairs(count: int) -> None:
    pairs = Pairs(seed=count)
    for _ in range(count):
        pairs.check_next()
    assert min(pairs.num_own_hits, pairs.num_diverged) > count / 20, "the cache was hardly used"


def test_equal_prompts_of_two_tenants_share_nothing_and_cost_the_same_steps() -> None:
    check_pairs(NUM_PAIRS)


@pytest.mark.soak
def test_a_hundred_thousand_pairs_of_equal_prompts_share_nothing() -> None:
    check_pairs(NUM_PAIRS_IN_SOAK)


def test_a_tenant_that_repeats_anothers_prompt_word_for_word_has_nothing_cached() -> None:
    engine = OneEngine()
    prompt = range(40)
    engine.ask("acme", prompt)
    assert engine.ask("acme", prompt).cached_tokens == 36
    assert engine.ask("zeta", prompt).cached_tokens == 0


def test_a_miss_says_nothing_of_another_tenants_prompts() -> None:
    engine = OneEngine()
    engine.ask("acme", [*range(12), 1, 2])
    assert engine.ask("zeta", [*range(11), 99, 1, 2]).diverged_at is None
    assert engine.ask("acme", [*range(11), 99, 1, 2]).diverged_at == 11
