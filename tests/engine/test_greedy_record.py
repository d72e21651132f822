"""Greedy tokens for the record: those that plain numpy computed, each with its lead over the second best."""

from __future__ import annotations

import pytest

from engine import greedy_record
from tests.builders_model import TINY, tiny_answers


def test_they_are_the_ones_computed_elsewhere() -> None:
    rows = tiny_answers()
    answers = greedy_record.greedy_record(str(TINY), [row["prompt_token_ids"] for row in rows])
    length = greedy_record.OUTPUT_TOKENS
    assert [list(token_ids) for _, token_ids, _ in answers] == [row["token_ids"][:length] for row in rows]
    assert [list(prompt) for prompt, _, _ in answers] == [row["prompt_token_ids"] for row in rows]
    assert all(len(margins) == length and min(margins) > 1e-3 for _, _, margins in answers)


def test_without_prompts_the_same_are_drawn_each_time() -> None:
    once, again = (greedy_record.greedy_record(str(TINY)) for _ in range(2))
    assert once == again
    assert len({prompt for prompt, _, _ in once}) == greedy_record.NUM_PROMPTS


def test_a_model_that_is_not_there_is_a_value_error_in_one_line() -> None:
    with pytest.raises(ValueError, match="model 'none' was not found"):
        greedy_record.greedy_record("none")


@pytest.mark.parametrize("prompt", [[], [-1], [1 << 40], [1] * 300])
def test_a_prompt_that_it_cannot_take_is_a_value_error_in_one_line(prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt 1: "):
        greedy_record.greedy_record(str(TINY), [[1, 2, 3], prompt])
