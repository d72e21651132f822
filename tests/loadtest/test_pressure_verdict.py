"""When an answer under pressure is its solo run's, when it may differ, and when it contradicts itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from engine.request import SamplingParams, TokenLogprobs
from loadtest.pressure.answer import SiblingAnswer
from loadtest.pressure.verdict import TOLERANCE, Tolerance, compare, contradictions

GREEDY = SamplingParams(max_tokens=3, temperature=0.0)
EOS = 9


def told(*gaps: float) -> tuple[TokenLogprobs, ...]:
    """Of each token: 5 was taken, 6 is `gap` behind."""
    return tuple(TokenLogprobs(-1.0, ((5, -1.0), (6, -1.0 - gap))) for gap in gaps)


SOLO = SiblingAnswer((5, 5, 5), told(1.0, 0.0005, 1.0), "abc", "length")


def an_answer(*token_ids: int, **fields: Any) -> SiblingAnswer:
    return replace(SOLO, **{"token_ids": token_ids, **fields})


@pytest.mark.parametrize("epsilon", [None, 1e-3])
def test_equal_answers_are_the_same(epsilon: float | None) -> None:
    assert compare(SOLO, SOLO, GREEDY, epsilon) == "same"


@pytest.mark.parametrize("epsilon", [None, 1e-3])
@pytest.mark.parametrize("fields", [{"text": "abd"}, {"finish": "stop"}])
def test_equal_tokens_with_another_text_or_finish_differ(
    epsilon: float | None, fields: dict[str, Any]
) -> None:
    assert compare(replace(SOLO, **fields), SOLO, GREEDY, epsilon) == "differing"


def test_an_aborted_answer_is_held_to_the_tokens_that_it_got() -> None:
    cut = SiblingAnswer((5,), told(1.0), "a", "length")
    assert compare(replace(cut, finish="abort"), cut, GREEDY, None) == "same"
    assert compare(an_answer(6, finish="abort", text="a"), cut, GREEDY, None) == "differing"


def test_logprobs_are_compared_where_every_bit_is_promised() -> None:
    other = replace(SOLO, logprobs=told(1.0, 0.0005, 1.1))
    assert compare(other, SOLO, GREEDY, None) == "differing"
    assert compare(other, SOLO, GREEDY, 1e-3) == "same"


def test_a_first_difference_at_a_near_tie_is_one() -> None:
    assert compare(an_answer(5, 6, 7), SOLO, GREEDY, 1e-3) == "near_tie"
    assert compare(an_answer(5, 6, 7), SOLO, GREEDY, None) == "differing"


@pytest.mark.parametrize(
    "token_ids",
    [
        pytest.param((6, 5, 5), id="the first difference is no tie"),
        pytest.param((5, 7, 5), id="the other token is not among the likeliest"),
        pytest.param((5, 5), id="a token is missing"),
        pytest.param((5, 5, 5, 5), id="a token too many"),
    ],
)
def test_any_other_difference_is_a_loss(token_ids: tuple[int, ...]) -> None:
    assert compare(an_answer(*token_ids), SOLO, GREEDY, 1e-3) == "differing"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": ((1, 2.0),)},
    ],
)
def test_what_raw_logprobs_cannot_judge_may_go_its_own_way_but_not_in_exact_modes(
    fields: dict[str, Any],
) -> None:
    drawn = with_fields(GREEDY, **fields)
    assert compare(an_answer(6, 5, 5), SOLO, drawn, 1e-3) == "apart"
    assert compare(an_answer(6, 5, 5), SOLO, drawn, None) == "differing"
    assert compare(SOLO, SOLO, drawn, 1e-3) == "same"


def test_few_may_go_their_own_way_and_one_always() -> None:
    tolerance = Tolerance(epsilon=1e-3, apart_share=0.1)
    assert [tolerance.max_apart(num_drawn) for num_drawn in (0, 9, 19, 20, 55)] == [1, 1, 1, 2, 5]


@pytest.mark.parametrize(("dtype", "most"), [("float32", 15), ("bfloat16", 100)])
def test_some_may_go_their_own_way_in_float32_and_all_in_bfloat16(dtype: str, most: int) -> None:
    assert TOLERANCE[dtype].max_apart(100) == most


def faults(
    answer: SiblingAnswer, sampling: SamplingParams = GREEDY, stop: tuple[str, ...] = (), whole: str = "abc"
) -> list[str]:
    return contradictions(answer, sampling, [EOS], stop, whole)


@pytest.mark.parametrize(
    ("answer", "sampling", "stop"),
    [
        pytest.param(SOLO, GREEDY, (), id="by length"),
        pytest.param(an_answer(5, EOS, finish="stop", logprobs=()), GREEDY, (), id="end token"),
        pytest.param(an_answer(5, EOS, finish="stop", logprobs=()), GREEDY, ("x",), id="end, not stop"),
        pytest.param(
            an_answer(5, 4, finish="stop", logprobs=()),
            with_fields(GREEDY, stop_token_ids=(4,), ignore_eos=True),
            (),
            id="stop token",
        ),
        pytest.param(
            an_answer(5, 5, 5, finish="stop", logprobs=(), text="a"), GREEDY, ("x", "bc"), id="stop string"
        ),
        pytest.param(an_answer(5, 5, finish="stop", logprobs=(), text=""), GREEDY, ("a",), id="at once"),
        pytest.param(an_answer(finish="abort", logprobs=(), text=""), GREEDY, (), id="aborted"),
    ],
)
def test_an_answer_that_agrees_with_what_was_asked(
    answer: SiblingAnswer, sampling: SamplingParams, stop: tuple[str, ...]
) -> None:
    assert faults(answer, sampling, stop) == []


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (an_answer(5, 5, 5, 5, logprobs=()), "4 tokens, at most 3 were asked for"),
        (an_answer(5, 5, logprobs=()), "it ended by length with 2 of 3 tokens"),
        (an_answer(5, 5, finish="stop", logprobs=()), "it stopped where nothing ends it"),
        (an_answer(finish="stop", logprobs=()), "it stopped where nothing ends it"),
        (an_answer(5, finish=None, logprobs=()), "it never ended"),
        (an_answer(5, finish="abort", logprobs=told(1.0, 1.0)), "2 logprobs for 1 tokens"),
    ],
)
def test_an_answer_that_contradicts_what_was_asked(answer: SiblingAnswer, found: str) -> None:
    assert found in faults(answer)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("abc", ["it stopped where nothing ends it"], id="none was completed"),
        pytest.param("ab", ["it stopped where nothing ends it"], id="cut elsewhere"),
        pytest.param(
            "axb", ["it stopped where nothing ends it", "its text holds a stop string"], id="too late"
        ),
    ],
)
def test_a_stop_with_stop_strings_is_where_one_was_completed(text: str, found: list[str]) -> None:
    answer = an_answer(5, 5, 5, finish="stop", logprobs=(), text=text)
    assert faults(answer, stop=("x", "bd"), whole="abc" if "x" not in text else "axbe") == found


def test_text_that_runs_past_a_stop_string_is_a_fault_however_it_ended() -> None:
    assert faults(SOLO, stop=("b",)) == ["its text holds a stop string"]


def test_an_end_token_that_was_to_be_ignored_ends_nothing() -> None:
    ignoring = with_fields(GREEDY, ignore_eos=True)
    assert faults(an_answer(5, EOS, finish="stop", logprobs=()), ignoring)
