"""The running p90 of output length."""

from __future__ import annotations

from random import Random

import pytest

from tenants.ledger.output_estimate import FIRST_ESTIMATE, MAX_ESTIMATE, moved


def test_it_goes_up_by_nine_steps_and_down_by_one() -> None:
    assert FIRST_ESTIMATE == 256
    assert (moved(256, 257), moved(256, 256), moved(256, 0)) == (292, 252, 252)
    assert (moved(63, 64), moved(63, 1), moved(1, 0), moved(1, 2)) == (72, 62, 1, 10)
    assert moved(MAX_ESTIMATE, 2**60) == MAX_ESTIMATE


@pytest.mark.parametrize("longest", [50, 500, 20_000])
def test_one_answer_in_ten_is_longer(longest: int) -> None:
    rng = Random(0)
    estimate, longer, rounds = FIRST_ESTIMATE, 0, 5000
    for turn in range(2 * rounds):
        answer = rng.randint(1, longest)
        longer += turn >= rounds and answer > estimate
        estimate = moved(estimate, answer)
    assert longer / rounds == pytest.approx(0.1, abs=0.02)


def test_a_tenant_with_one_length_comes_to_rest_around_it() -> None:
    estimate = FIRST_ESTIMATE
    for _ in range(500):
        estimate = moved(estimate, 40)
    assert 40 - 1 <= estimate <= 40 + 9
