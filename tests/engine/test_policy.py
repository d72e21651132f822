"""First come, first served: the order of going next, and of making room."""

from __future__ import annotations

from engine.policy import FirstComeFirstServed
from tests.engine.candidate import Candidate


def order(*candidates: Candidate) -> list[str]:
    return [candidate.request_id for candidate in FirstComeFirstServed().order(candidates)]


def victim(*candidates: Candidate) -> str:
    return FirstComeFirstServed().victim(candidates).request_id


def test_earlier_goes_first() -> None:
    assert order(Candidate("b", arrival_order=2), Candidate("a", arrival_order=1)) == ["a", "b"]


def test_a_preempted_request_goes_before_those_that_never_ran() -> None:
    assert order(Candidate("a", arrival_order=1), Candidate("b", arrival_order=2, num_preemptions=1)) == [
        "b",
        "a",
    ]


def test_a_higher_class_goes_before_a_preempted_lower_one() -> None:
    assert order(Candidate("low", priority=1, num_preemptions=1), Candidate("high", arrival_order=9)) == [
        "high",
        "low",
    ]


def test_the_victim_is_of_the_lowest_class_then_cheapest_then_youngest() -> None:
    dear_low = Candidate("dear low", priority=1, num_computed_tokens=99)
    cheap_high = Candidate("cheap high", num_computed_tokens=1)
    assert victim(cheap_high, dear_low) == "dear low"
    cheap_low = Candidate("cheap low", priority=1, num_computed_tokens=5, arrival_order=1)
    assert victim(dear_low, cheap_low, cheap_high) == "cheap low"
    young_low = Candidate("young low", priority=1, num_computed_tokens=5, arrival_order=2)
    assert victim(young_low, dear_low, cheap_low) == "young low"
