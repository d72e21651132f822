"""Bank conflicts by hand: what is counted is how many different words one bank has to give at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.audit.bank_conflicts import degree_of_lanes, degree_of_matrices
from kernels.audit.layout import Bases, Layout, UnknownLayout


def swizzled(vec: int, per_phase: int, max_phase: int, order: tuple[int, ...] = (1, 0)) -> Layout:
    fields = {"vec": vec, "perPhase": per_phase, "maxPhase": max_phase, "order": list(order)}
    return Layout("swizzled_shared", fields)


def for_units(width: int) -> Layout:
    return Layout("nvmma_shared", {"swizzlingByteWidth": width, "transposed": False, "elementBitWidth": 16})


PLAIN = swizzled(1, 1, 1)


@pytest.mark.parametrize(
    ("row_elements", "degree"),
    [
        (64, 8),  # rows of 128 bytes: the same 4 banks for all 8
        (128, 8),
        (32, 4),  # of 64 bytes: every second one
        (16, 2),
        (8, 1),  # of 16 bytes: 8 rows are 128 bytes in a row
    ],
)
def test_rows_that_are_not_swizzled_meet_in_their_banks(row_elements: int, degree: int) -> None:
    assert degree_of_matrices(PLAIN, (64, row_elements), 2) == degree


@given(st.sampled_from([8, 16, 32, 64, 128, 256]))
def test_a_swizzle_made_for_the_row_serves_matrices_at_once(row_elements: int) -> None:
    per_phase = max(1, 64 // row_elements)
    shared = swizzled(8, per_phase, max(1, min(8, row_elements // 8)))
    assert degree_of_matrices(shared, (64, row_elements), 2) == 1


@pytest.mark.parametrize(
    ("shared", "degree"),
    [(swizzled(8, 1, 4), 2), (swizzled(8, 1, 2), 4), (swizzled(8, 2, 8), 2), (swizzled(8, 8, 8), 8)],
)
def test_a_swizzle_with_too_few_phases_leaves_some(shared: Layout, degree: int) -> None:
    assert degree_of_matrices(shared, (64, 64), 2) == degree


@pytest.mark.parametrize(("width", "columns"), [(128, 64), (128, 256), (64, 32), (32, 16)])
def test_the_layouts_of_matrix_units_are_free_of_conflicts(width: int, columns: int) -> None:
    assert degree_of_matrices(for_units(width), (64, columns), 2) == 1


def steps(*strides: int) -> tuple[tuple[int, int], ...]:
    return tuple((0, stride) for stride in strides)


LANES = steps(1, 2, 4, 8, 16)


def test_neighbouring_words_are_served_at_once() -> None:
    assert degree_of_lanes(Bases((), LANES), PLAIN, (1, 32), 4) == 1


@pytest.mark.parametrize(("gap", "degree"), [(2, 2), (4, 4), (32, 32)])
def test_lanes_that_leave_gaps_meet(gap: int, degree: int) -> None:
    lanes = steps(*(gap * step for step in (1, 2, 4, 8, 16)))
    assert degree_of_lanes(Bases((), lanes), PLAIN, (1, 32 * gap), 4) == degree


def test_one_word_for_all_is_no_conflict() -> None:
    assert degree_of_lanes(Bases((), steps(0, 0, 0, 0, 0)), PLAIN, (1, 32), 4) == 1


def test_halves_of_a_word_are_one_word() -> None:
    assert degree_of_lanes(Bases((), LANES), PLAIN, (1, 32), 2) == 1


def test_wide_loads_are_served_eight_lanes_at_a_time() -> None:
    """Each lane 16 bytes side by side: 8 lanes are 128 bytes."""
    held = Bases(steps(1, 2), steps(4, 8, 16, 32, 64))
    assert degree_of_lanes(held, PLAIN, (1, 128), 4) == 1


def test_lanes_of_32_bytes_each_take_two_turns_for_every_half() -> None:
    held = Bases(steps(1, 2, 4), steps(8, 16, 32, 64, 128))
    assert degree_of_lanes(held, PLAIN, (1, 256), 4) == 2


def test_what_the_compiler_takes_by_single_elements_is_not_wide() -> None:
    """As two loads of 4 bytes with gaps, where one of 8 bytes would have none."""
    held = Bases(steps(1), steps(2, 4, 8, 16, 32))
    assert degree_of_lanes(held, PLAIN, (1, 64), 4) == 1
    assert degree_of_lanes(held, PLAIN, (1, 64), 4, most_elements=1) == 2


def test_a_swizzle_spreads_rows_that_lie_in_the_same_banks() -> None:
    """8 lanes at a time hold 2 vectors of each of 4 rows of 128 bytes."""
    held = Bases(steps(1, 2, 4, 8, 16), ((0, 32), (1, 0), (2, 0), (4, 0), (8, 0)))
    assert degree_of_lanes(held, swizzled(8, 1, 8), (16, 64), 2) == 1
    assert degree_of_lanes(held, PLAIN, (16, 64), 2) == 4


def test_a_vector_ends_where_the_swizzle_moves_it() -> None:
    """Vectors of 8 bytes go 16 lanes at a time: 8 rows with 2 vectors each, at 8 places of 16."""
    held = Bases(steps(1, 2, 4, 8, 16), ((0, 32), (1, 0), (2, 0), (4, 0), (8, 0)))
    assert degree_of_lanes(held, swizzled(4, 1, 8), (16, 64), 2) == 1
    assert degree_of_lanes(held, swizzled(4, 1, 4), (16, 64), 2) == 2


def test_columns_of_keys_read_by_threads_meet_eightfold() -> None:
    """A product of float32 without tensor cores: lane n reads row n of keys, 16 bytes at a time."""
    held = Bases(((1, 0), (2, 0), (4, 0)), ((0, 1), (0, 2), (0, 4), (0, 8), (0, 0)))
    assert degree_of_lanes(held, swizzled(1, 1, 1, (0, 1)), (64, 16), 4) == 8


def test_three_dimensions_are_not_understood() -> None:
    with pytest.raises(UnknownLayout):
        degree_of_matrices(PLAIN, (2, 64, 64), 2)
