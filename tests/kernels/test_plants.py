"""Parity is worth what it finds: each planted fault must make a case of its op fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kernels.parity.catalogue import OPS
from kernels.parity.runner import check, device_in_use
from tests.kernels.plants import Plant, all_plants, cases_for, planted

PLANTS = list(all_plants())


def test_each_op_has_at_least_three() -> None:
    planted_in = Counter(plant.op for plant in PLANTS)
    assert {op: planted_in[op] for op in OPS if planted_in[op] < 3} == {}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.op}: {plant.why}")
def test_a_planted_fault_is_found(plant: Plant, tmp_path: Path) -> None:
    module = planted(plant, tmp_path)
    assert any(row.failure for case in cases_for(plant) for row in check(case, device_in_use(), module))
