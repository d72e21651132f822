"""The load of `bench pressure`: as random as it says, and the same again for the same seed."""

from __future__ import annotations

from collections import Counter
from math import log2

import pytest

from engine.config import EngineConfig
from engine.refusal import check_fits
from loadtest.pressure.load import Case, PressureLoad, make_cases

LOAD = PressureLoad(num_requests=2000, max_prompt=127, max_output=63, seed=3)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return make_cases(LOAD, vocab_size=259, block_size=16)


def test_the_same_seed_gives_the_same_load() -> None:
    few = PressureLoad(num_requests=20, max_prompt=30, max_output=9, seed=1)
    other = PressureLoad(num_requests=20, max_prompt=30, max_output=9, seed=2)
    first, again, third = (make_cases(load, vocab_size=50, block_size=4) for load in (few, few, other))
    assert first == again != third


def test_each_doubling_of_a_length_is_as_likely_as_the_next(cases: list[Case]) -> None:
    """Outputs from 1 to 63: six doublings."""
    outputs = [case.request.sampling.max_tokens for case in cases]
    doublings = Counter(int(log2(length)) for length in outputs)
    assert (min(outputs), max(outputs)) == (1, 63)
    assert doublings.keys() == set(range(6))
    assert all(count == pytest.approx(2000 / 6, rel=0.2) for count in doublings.values())


def test_half_of_the_prompts_begin_with_one_of_four_prefixes(cases: list[Case]) -> None:
    beginnings = Counter(case.request.prompt_token_ids[:7] for case in cases)
    shared = [count for count in beginnings.values() if count > 20]
    assert len(shared) == 4
    assert sum(shared) == pytest.approx(1000, rel=0.1)
    assert max(len(case.request.prompt_token_ids) for case in cases) == 127


def test_thirty_percent_leave_in_any_state_between_steps_and_in_flight(cases: list[Case]) -> None:
    departures = [case.departure for case in cases if case.departure is not None]
    assert len(departures) == pytest.approx(600, rel=0.1)
    assert {d.state for d in departures} == {"waiting", "prefill", "preempted", "decoding"}
    assert {d.state for d in departures if d.is_in_flight} == {"prefill", "decoding"}
    assert sum(d.sibling is not None for d in departures) > 30


def test_a_departure_is_one_that_can_come(cases: list[Case]) -> None:
    for case in cases:
        if (departure := case.departure) is not None:
            assert 1 <= departure.num_tokens <= case.request.sampling.max_tokens
            assert departure.sibling is None or 0 <= departure.sibling < case.request.n


def test_every_parameter_of_sampling_takes_part(cases: list[Case]) -> None:
    plain = cases[0].request.sampling
    names = list(plain.__struct_fields__)
    values = {name: {getattr(case.request.sampling, name) for case in cases} for name in names}
    assert [name for name in names if len(values[name]) < 2] == []
    greedy = sum(case.request.sampling.temperature == 0 for case in cases)
    assert greedy == pytest.approx(2000 * (0.6 + 0.4 * 0.25), rel=0.1)


def test_siblings_priorities_stops_and_roots_take_part(cases: list[Case]) -> None:
    assert {case.request.n for case in cases} == {1, 2, 3, 4}
    assert {case.request.priority for case in cases} == {0, 1}
    assert {len(case.stop) for case in cases} == {0, 1, 2, 3}
    assert len({case.request.hash_root for case in cases}) == 2


def test_every_request_can_be_served_alone(cases: list[Case]) -> None:
    config = EngineConfig(num_blocks=17, max_model_len=256, max_num_seqs=4)
    for case in cases:
        check_fits(case.request, config)


def test_demand_is_the_prompt_once_and_every_answer_at_its_longest(cases: list[Case]) -> None:
    case = next(case for case in cases if case.request.n == 3)
    sampling = case.request.sampling
    assert case.demand_tokens == len(case.request.prompt_token_ids) + 3 * sampling.max_tokens
