"""Prompts with shared beginnings: what they share, how often, and what caches could save at most."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import BLOCK_SIZE
from loadtest.shared_prefix import SharedPrefix


def a_workload(**fields: object) -> SharedPrefix:
    plain = {
        "seed": 0,
        "num_prefixes": 3,
        "prefix_tokens": 40,
        "suffix_tokens": 10,
        "output_tokens": 8,
        "vocab_size": 256,
    }
    return SharedPrefix(**plain | fields)


@settings(max_examples=40)
@given(st.integers(), st.integers(1, 5), st.integers(1, 70), st.integers(1, 40))
def test_a_prompt_is_its_prefix_and_a_suffix_of_its_own(
    seed: int, num_prefixes: int, prefix_tokens: int, suffix_tokens: int
) -> None:
    workload = a_workload(
        seed=seed, num_prefixes=num_prefixes, prefix_tokens=prefix_tokens, suffix_tokens=suffix_tokens
    )
    prompts = [workload.prompt(number) for number in range(12)]
    assert all(len(prompt.content) == prefix_tokens + suffix_tokens for prompt in prompts)
    assert all(prompt.output_tokens == 8 for prompt in prompts)
    beginnings = {
        (workload.prefix_of(number), tuple(prompt.content[:prefix_tokens]))
        for number, prompt in enumerate(prompts)
    }
    assert len(beginnings) == len({index for index, _ in beginnings})
    assert prompts == [workload.prompt(number) for number in range(12)]
    assert all(100 <= token < 256 for prompt in prompts for token in prompt.content)


def test_prefixes_and_suffixes_are_all_different() -> None:
    workload = a_workload(num_prefixes=5)
    prompts = [workload.prompt(number).content for number in range(200)]
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 5
    assert len({tuple(prompt[40:]) for prompt in prompts}) == 200
    beginnings = {tuple(prompt[:10]) for prompt in prompts}
    assert not beginnings & {tuple(prompt[40:]) for prompt in prompts}
    another = a_workload(num_prefixes=5, seed=1)
    assert not {tuple(prompt[:40]) for prompt in prompts} & {
        tuple(another.prompt(number).content[:40]) for number in range(200)
    }


def test_without_a_hot_one_all_prefixes_are_drawn_alike() -> None:
    counts = Counter(a_workload(num_prefixes=4).prefix_of(number) for number in range(8000))
    assert all(count / 8000 == pytest.approx(0.25, abs=0.015) for count in counts.values())
    assert len(counts) == 4


def test_a_hot_prefix_has_its_share_and_the_others_share_the_rest() -> None:
    workload = a_workload(num_prefixes=5, hot_share=0.8)
    counts = Counter(workload.prefix_of(number) for number in range(8000))
    assert counts[0] / 8000 == pytest.approx(0.8, abs=0.015)
    assert all(counts[index] / 8000 == pytest.approx(0.05, abs=0.01) for index in range(1, 5))


def test_one_prefix_alone_cannot_be_hot() -> None:
    with pytest.raises(ValueError, match="two at least"):
        a_workload(num_prefixes=1, hot_share=0.8)


def test_ideally_each_prefix_is_computed_once_in_whole_blocks() -> None:
    workload = a_workload(num_prefixes=1)
    assert workload.ideal_hit_rate(0) is None
    assert workload.ideal_hit_rate(1) == 0.0
    assert workload.ideal_hit_rate(4) == 3 * 32 / (4 * 50)


@settings(max_examples=40)
@given(st.integers(), st.integers(1, 4), st.integers(1, 60), st.integers(1, 30), st.integers(1, 20))
def test_the_ideal_is_that_of_a_cache_that_forgets_nothing(
    seed: int, num_prefixes: int, prefix_tokens: int, suffix_tokens: int, num_requests: int
) -> None:
    workload = a_workload(
        seed=seed,
        num_prefixes=num_prefixes,
        prefix_tokens=prefix_tokens,
        suffix_tokens=suffix_tokens,
        vocab_size=50_000,  # so that no two suffixes begin alike by chance
    )
    prompts = [workload.prompt(number).content for number in range(num_requests)]
    assert workload.ideal_hit_rate(num_requests) == remembered_share(prompts)


def remembered_share(prompts: list[list[int]]) -> float:
    """Prompt tokens found in a set of all beginnings of whole blocks, one token left to compute."""
    seen: set[tuple[int, ...]] = set()
    cached = 0
    for prompt in prompts:
        ends = range(BLOCK_SIZE, len(prompt) + 1, BLOCK_SIZE)
        cached += max((end for end in ends if end < len(prompt) and tuple(prompt[:end]) in seen), default=0)
        seen |= {tuple(prompt[:end]) for end in ends}
    return cached / sum(map(len, prompts))
