"""The GPU's instructions: which are loops, what they compute, what they load."""

from __future__ import annotations

import pytest

from kernels.audit.loops import loop_bodies
from kernels.audit.sass import (
    Program,
    global_accesses,
    num_spills,
    parse,
    share_outside,
    tensor_instructions,
)


def program(*lines: str) -> Program:
    """Lines as nvdisasm prints them, but for their addresses; a label ends with a colon."""
    text, address = [], 0
    for line in lines:
        if line.endswith(":"):
            text.append(line)
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return parse("\n".join(text))


def test_a_jump_back_makes_a_loop() -> None:
    found = program(
        "MOV R1, R2", ".L_x_0:", "FADD R1, R1, R2", "@P0 BRA `(.L_x_0)", "STG.E desc[UR4][R2.64], R1", "EXIT"
    )
    assert [[i.name for i in loop] for loop in found.loops] == [["FADD", "BRA"]]


def test_only_the_innermost_counts_and_it_must_do_something() -> None:
    found = program(
        ".L_x_0:", "FMUL R3, R3, R3",
        ".L_x_1:", "FFMA R1, R1, R2, R3", "@P0 BRA `(.L_x_1)",
        ".L_x_2:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R4], R5", "@!P1 BRA `(.L_x_2)",
        "@P2 BRA `(.L_x_0)",
        ".L_x_3:", "BRA `(.L_x_3)",
    )  # fmt: skip
    assert [[i.name for i in loop] for loop in found.loops] == [["FFMA", "BRA"]]


def test_code_moved_out_of_the_way_is_part_of_its_loop_and_none_of_its_own() -> None:
    """A wait that seldom lasts stands behind the end, and jumps back into the middle of the loop."""
    found = program(
        ".L_x_0:", "FADD R1, R1, R2", "@!P1 BRA `(.L_x_2)",
        ".L_x_1:", "FMUL R1, R1, R2", "@P0 BRA `(.L_x_0)", "EXIT",
        ".L_x_2:", "MUFU.EX2 R4, R4", "BRA `(.L_x_1)",
    )  # fmt: skip
    assert [[i.name for i in loop] for loop in found.loops] == [
        ["FADD", "BRA", "FMUL", "BRA", "MUFU", "BRA"],
    ]


def test_loops_with_one_head_are_one() -> None:
    assert loop_bodies([[1], [2, 3], [1], [1, 4], []]) == [{1, 2, 3}]


def test_a_jump_back_into_what_can_be_entered_elsewhere_is_none() -> None:
    assert loop_bodies([[1, 2], [2], [1]]) == []


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("HMMA.16816.F32", 4096),
        ("HMMA.1688.F32.TF32", 2048),
        ("IMMA.16832.S8.S8", 8192),
        ("DMMA.884", 512),
        ("HGMMA.64x128x16.F32.BF16", 65536),  # a quarter of what four warps do together
        ("QGMMA.64x64x32.F32.E4M3.E4M3", 65536),
        ("UTCHMMA", 250.0),
    ],
)
def test_the_share_outside_tensor_cores_is_by_work_not_by_number(opcode: str, flops: float) -> None:
    found = program(f"{opcode} R4, R8, R12, R4", "FFMA R1, R1, R2, R3", "MUFU.EX2 R1, R1")
    assert tensor_instructions(found.instructions) == {opcode: 1}
    share = share_outside(found.instructions, num_warps=4, unit_flops=1000.0)
    assert share == pytest.approx(96 / (96 + flops))


def test_loading_a_constant_is_no_mathematics() -> None:
    found = program("HFMA2.MMA R1, -RZ, RZ, 0, 0", "HFMA2 R1, R2, R3, R4")
    assert [i.lane_flops for i in found.instructions] == [0, 4]
    assert tensor_instructions(found.instructions) == {}


def test_code_without_mathematics_has_no_share() -> None:
    assert share_outside(program("MOV R1, R2").instructions, 4, 0.0) is None


def test_widths_of_loads_and_stores() -> None:
    found = program(
        "LDG.E R1, desc[UR4][R2.64]",
        "LDG.E.U16 R1, desc[UR4][R2.64]",
        "LDG.E.128.CONSTANT R4, desc[UR4][R2.64]",
        "LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64]",
        "@P1 LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR4][R2.64]",
        "LDGSTS.E.64 [R3], desc[UR4][R2.64]",
        "STG.E.U8 desc[UR4][R2.64], R1",
        "UBLKCP [UR8], [UR4], UR6",
        "LDS.128 R4, [R1]",
    )
    assert global_accesses(found.instructions) == {
        "LDG.128": 1, "LDG.16": 1, "LDG.256": 1, "LDG.32": 1, "LDGSTS.128": 1, "LDGSTS.64": 1,
        "STG.8": 1, "UBLKCP": 1,
    }  # fmt: skip


def test_local_memory_is_where_spills_go() -> None:
    assert num_spills(program("STL [R1], R2", "LDL.LU R2, [R1]", "LDS R2, [R1]").instructions) == 2
