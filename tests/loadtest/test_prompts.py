"""Prompts: of exact length, and the same for the same seed."""

from hypothesis import given
from hypothesis import strategies as st

from loadtest.prompts import text_prompt, token_prompt


@given(st.integers(), st.integers(0), st.integers(1, 50), st.integers(101, 50_000))
def test_token_prompts_are_exact_and_within_the_vocabulary(
    seed: int, index: int, num_tokens: int, vocab_size: int
) -> None:
    prompt = token_prompt(seed, index, num_tokens, vocab_size)
    assert len(prompt) == num_tokens
    assert all(100 <= token < vocab_size for token in prompt)
    assert prompt == token_prompt(seed, index, num_tokens, vocab_size)


def test_each_seed_and_number_has_its_own_prompt() -> None:
    prompts = [token_prompt(seed, index, 32, 1000) for seed in (0, 1) for index in (0, 1)]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 4


def test_a_prompt_stays_the_same_for_ever() -> None:
    assert token_prompt(0, 0, 5, 1000) == [698, 791, 686, 698, 905]
    assert text_prompt(0, 1, 3) == "light light bridge"
