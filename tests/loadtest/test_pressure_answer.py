"""What a client of `bench pressure` reads of one answer, and what it holds against the engine."""

from __future__ import annotations

from typing import Any

from engine.request import RequestOutput, Timing, TokenLogprobs
from loadtest.pressure.answer import Reader, SiblingAnswer


def an_output(first: int, text: str = "", **fields: Any) -> RequestOutput:
    return RequestOutput("r", 0, 0, first, tuple(text.encode()), **fields)


def a_reader(*stop: str) -> Reader:
    return Reader(lambda token_id: bytes([token_id]), stop)


def test_tokens_text_logprobs_and_finish_are_kept() -> None:
    reader = a_reader()
    logprobs = (TokenLogprobs(-1.0), TokenLogprobs(-2.0))
    reader.take(an_output(0, "ab", logprobs=logprobs))
    timing = Timing(queued_s=0, prefill_s=0, decode_s=0, preempted_s=0, num_preemptions=2)
    reader.take(an_output(2, "c", finish_reason="length", timing=timing))
    assert reader.answer() == SiblingAnswer(tuple(b"abc"), logprobs, "abc", "length")
    assert (reader.is_over, reader.has_ended, reader.num_preemptions, reader.faults) == (True, True, 2, [])


def test_a_stop_string_ends_the_answer_and_what_follows_is_not_of_it() -> None:
    reader = a_reader("bc")
    for place, letter in enumerate("abc"):
        reader.take(an_output(place, letter))
    assert (reader.is_over, reader.has_ended) == (True, False)
    reader.take(an_output(3, finish_reason="abort"))
    assert reader.answer() == SiblingAnswer(tuple(b"abc"), (), "a", "stop")
    assert reader.has_ended
    assert reader.faults == []


def test_held_text_is_flushed_at_the_end() -> None:
    reader = a_reader("bc")
    reader.take(an_output(0, "ab", finish_reason="length"))
    assert reader.answer().text == "ab"


def test_a_lost_a_doubled_and_a_late_output_are_faults() -> None:
    reader = a_reader()
    reader.take(an_output(0, "a"))
    reader.take(an_output(2, "c"))
    reader.take(an_output(1, "c"))
    reader.take(an_output(3, finish_reason="abort"))
    reader.take(an_output(3, "d"))
    assert reader.faults == [
        "output 2 came where 1 was next",
        "output 1 came where 2 was next",
        "an output after the end",
    ]


def test_an_error_is_a_fault_with_its_code() -> None:
    reader = a_reader()
    reader.take(an_output(0, finish_reason="error", error_code="engine_error"))
    assert (reader.answer().finish, reader.faults) == ("error", ["engine_error"])
