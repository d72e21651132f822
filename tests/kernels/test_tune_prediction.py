"""Predictions to rank by: each of the four times rules where it should, and what spills is out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernels.audit.facts import Facts, facts_of
from kernels.gpus import GPUS
from kernels.tune.prediction import LAUNCH_S, LOAD_CYCLES, seconds
from kernels.tune.problem import Turns
from tests.kernels.audit_sample import ARCH, stored

H100 = GPUS["h100"]
A_TURN = Turns(number=1, flops=0, num_bytes=0)


@pytest.fixture
def facts() -> Facts:
    """Two programs for every processor, loads covered by a deep pipeline, no instructions to speak of."""
    found = facts_of(stored("sound"), ARCH)
    return replace(
        found, grid=(2 * H100.processors,), num_stages=10**6, loop_instructions=0, loop_flops=0.0, tensor={}
    )


def predicted(facts: Facts, turns: Turns, num_bytes: int = 0) -> float:
    """Without the launch."""
    found = seconds([facts], {facts.kernel: turns}, H100, num_bytes=num_bytes, dtype="float16")
    return found - LAUNCH_S


def test_no_candidate_is_faster_than_all_bytes_once(facts: Facts) -> None:
    turns = Turns(number=H100.processors * 100, flops=1, num_bytes=64)
    assert predicted(facts, turns, num_bytes=3_350_000_000) == pytest.approx(1e-3)


def test_what_is_read_again_comes_64_bytes_a_cycle(facts: Facts) -> None:
    turns = Turns(number=H100.processors * 100, flops=1, num_bytes=64_000)
    assert predicted(facts, turns, num_bytes=1) == pytest.approx(100 * 1000 / H100.clock, rel=1e-3)


def test_products_take_what_tensor_cores_take(facts: Facts) -> None:
    turns = Turns(number=H100.processors * 100, flops=10**6, num_bytes=1)
    assert predicted(facts, turns) == pytest.approx(turns.number * 10**6 / 989.4e12, rel=1e-3)


def test_instructions_are_issued_four_a_cycle(facts: Facts) -> None:
    busy = replace(facts, loop_instructions=1000)
    turns = Turns(number=H100.processors * 100, flops=1, num_bytes=1)
    assert predicted(busy, turns) == pytest.approx(100 * 1000 * 4 / 4 / H100.clock, rel=1e-2)


def test_a_loop_of_several_turns_counts_once_for_all(facts: Facts) -> None:
    turns = Turns(number=H100.processors * 100, flops=8000, num_bytes=1)
    busy = replace(facts, loop_instructions=1000, loop_flops=2000.0)  # of a warp, of 4
    unrolled = replace(busy, loop_instructions=4000, loop_flops=8000.0)
    assert predicted(unrolled, turns) == predicted(busy, turns)


def test_a_shallow_pipeline_waits_unless_other_programs_fill_the_time(facts: Facts) -> None:
    turns = Turns(number=2 * H100.processors, flops=1, num_bytes=1)
    two_at_a_time = predicted(replace(facts, num_stages=2), turns)
    assert two_at_a_time == pytest.approx(LOAD_CYCLES / H100.clock, rel=1e-2)
    alone = replace(facts, num_stages=2, occupancy=replace(facts.occupancy, programs=1))
    assert predicted(alone, turns) == pytest.approx(2 * two_at_a_time, rel=1e-2)
    assert predicted(replace(alone, num_stages=5), turns) == pytest.approx(two_at_a_time / 2, rel=1e-2)


def test_keys_behind_a_block_table_are_waited_for_twice(facts: Facts) -> None:
    alone = replace(facts, num_stages=1, occupancy=replace(facts.occupancy, programs=1))
    turns = Turns(number=2 * H100.processors, flops=1, num_bytes=1)
    paged = replace(turns, num_loads=2)
    assert predicted(alone, paged) == pytest.approx(2 * predicted(alone, turns), rel=1e-2)


def test_one_program_more_than_processors_costs_a_whole_turn_more(facts: Facts) -> None:
    even = replace(facts, grid=(H100.processors,))
    odd = replace(facts, grid=(H100.processors + 1,))
    work = 10**6 * H100.processors
    first = predicted(even, Turns(H100.processors, work // H100.processors, 1))
    second = predicted(odd, Turns(H100.processors + 1, work // (H100.processors + 1), 1))
    assert second / first == pytest.approx(2 * 132 / 133, rel=1e-3)


def test_ampere_s_instructions_are_slower_on_later_gpus(facts: Facts) -> None:
    turns = Turns(number=H100.processors, flops=10**7, num_bytes=1)
    old = replace(facts, tensor={"HMMA.16816.F32": 4})
    new = replace(facts, tensor={"HGMMA.64x64x16.F32": 4})
    assert predicted(old, turns) == pytest.approx(predicted(new, turns) / 0.6)
    assert predicted(replace(facts, tensor={"IMMA.16832.S8.S8": 4}), turns) == predicted(old, turns)


def test_what_spills_or_does_not_fit_is_out(facts: Facts) -> None:
    for broken in (
        replace(facts, spill_bytes=8),
        replace(facts, num_spills=1),
        replace(facts, occupancy=replace(facts.occupancy, programs=0)),
    ):
        assert predicted(broken, A_TURN) == math.inf


def test_kernels_without_loops_cost_a_launch_and_their_bytes(facts: Facts) -> None:
    found = seconds([facts], {}, H100, num_bytes=3_350_000, dtype="float16")
    assert found == pytest.approx(LAUNCH_S + 1e-6)
