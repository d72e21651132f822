"""Every op within the tolerance of its type, on the quick grid; the whole one is soak."""

from __future__ import annotations

import pytest

from kernels.parity.case import OpCase
from kernels.parity.catalogue import OPS, cases_of
from kernels.parity.runner import check, device_in_use

QUICK = [case for op in OPS for case in cases_of(op, whole=False)]
WHOLE = [case for op in OPS for case in cases_of(op, whole=True)]


def failures(case: OpCase) -> list[str]:
    return [row.told for row in check(case, device_in_use()) if row.failure is not None]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.key)
def test_it_equals_its_reference(case: OpCase) -> None:
    assert failures(case) == []


@pytest.mark.soak
@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.key)
def test_it_equals_its_reference_whatever_the_shape(case: OpCase) -> None:
    assert failures(case) == []


def test_each_case_has_a_name_of_its_own_and_the_whole_grid_has_the_quick_one_s() -> None:
    keys = [case.key for case in WHOLE]
    assert len(set(keys)) == len(keys)
    assert {case.key for case in QUICK} <= set(keys)
