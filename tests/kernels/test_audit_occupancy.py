"""Programs a processor holds, by hand from the published limits."""

from __future__ import annotations

import pytest

from kernels.audit.occupancy import KIB, LIMITS, Footprint, Occupancy, occupancy


@pytest.mark.parametrize(
    ("arch", "footprint", "programs", "share", "limited_by"),
    [
        # 4 warps of 32 · 128 registers: each quarter of a processor holds 4.
        ("sm_90", Footprint(4, 128, 0), 4, 0.25, "registers"),
        # 255 registers are given as 256: 2 warps a quarter.
        ("sm_90", Footprint(8, 255, 0), 1, 0.125, "registers"),
        # 40 are given as 40: 12.8 warps a quarter, of which 12.
        ("sm_80", Footprint(4, 40, 0), 12, 0.75, "registers"),
        ("sm_80", Footprint(2, 40, 0), 24, 0.75, "registers"),
        # 41 are given as 48: 10 of 10.7 warps a quarter.
        ("sm_80", Footprint(2, 41, 0), 20, 0.625, "registers"),
        ("sm_80", Footprint(4, 32, 0), 16, 1.0, "warps"),
        ("sm_80", Footprint(1, 32, 0), 32, 0.5, "programs"),
        ("sm_89", Footprint(4, 32, 0), 12, 1.0, "warps"),
        # 70.5 and 1 KiB of 228.
        ("sm_90", Footprint(4, 32, 72_192), 3, 0.1875, "shared memory"),
        ("sm_80", Footprint(4, 32, 72_192), 2, 0.125, "shared memory"),
        ("sm_89", Footprint(4, 32, 72_192), 1, 4 / 48, "shared memory"),
        ("sm_100", Footprint(4, 32, 0, tensor_memory_columns=256), 2, 0.125, "tensor memory"),
    ],
)
def test_the_scarcest_thing_rules(
    arch: str, footprint: Footprint, programs: int, share: float, limited_by: str
) -> None:
    assert occupancy(footprint, LIMITS[arch]) == Occupancy(programs, share, limited_by)


def test_a_program_may_not_ask_for_all_shared_memory() -> None:
    assert occupancy(Footprint(4, 32, 227 * KIB), LIMITS["sm_90"]).programs == 1
    assert occupancy(Footprint(4, 32, 227 * KIB + 1), LIMITS["sm_90"]).programs == 0
