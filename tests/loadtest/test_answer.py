"""An answer being read: which piece is a token's arrival, and when an answer is whole."""

import json

import pytest

from loadtest.answer import AnswerReader

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def read(*events: object, expected_tokens: int | None = 2) -> AnswerReader:
    """Each event arrives one second after the one before, the first at 0."""
    answer = AnswerReader(expected_tokens)
    for now, value in enumerate(events):
        answer.on_event(value if isinstance(value, bytes) else json.dumps(value).encode(), float(now))
    return answer


def text(piece: str, finish_reason: str | None = None) -> dict:
    return {"choices": [{"text": piece, "finish_reason": finish_reason}]}


def delta(**fields: object) -> dict:
    return {"choices": [{"delta": fields, "finish_reason": None}]}


END = (text("", "length"), {"choices": [], "usage": USAGE}, b"[DONE]")


def test_a_whole_completion() -> None:
    answer = read(text("a"), text("b"), *END)
    assert (answer.status, answer.token_times, answer.last_token_at) == ("ok", [0.0, 1.0], 2.0)
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (5, 2, 4)


def test_a_whole_chat_counts_only_pieces_with_text() -> None:
    answer = read(delta(role="assistant", content=""), delta(content="a"), delta(content="b"), delta(), *END)
    assert (answer.status, answer.token_times) == ("ok", [1.0, 2.0])


@pytest.mark.parametrize("choice", [{"text": "ab"}, {"message": {"content": "ab"}}])
def test_an_answer_at_once_has_no_arrivals(choice: dict) -> None:
    answer = AnswerReader(2)
    answer.on_body(json.dumps({"choices": [choice | {"finish_reason": "length"}], "usage": USAGE}).encode())
    assert (answer.status, answer.token_times, answer.output_tokens) == ("ok", [], 2)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((), "cut off"),
        ((text("a"), text("b")), "cut off"),
        (END[:-1], "cut off"),
        (END[1:], "cut off"),
        ((text("", "length"), b"[DONE]"), "no usage"),
        ((b"{", *END), "garbled"),
        ((b'{"choices":7}', *END), "garbled"),
        ((b"[" * 10_000, *END), "garbled"),
        ((text("a"), {"error": {"code": "no_capacity"}}, b"[DONE]"), "error no_capacity"),
        (({"error": {}},), "error None"),
        (({"error": {"code": "x" * 1000}},), "error " + "x" * 58),
    ],
)
def test_an_answer_that_is_not_whole_says_why(events: tuple, status: str) -> None:
    assert read(*events).status == status


def test_an_answer_of_another_length_than_asked_is_an_error() -> None:
    assert read(*END, expected_tokens=3).status == "wrong length"
    assert read(*END, expected_tokens=None).status == "ok"
