"""Which pointer a load in a loop goes through, and how wide it is."""

from __future__ import annotations

from kernels.audit.ptx import Read, reads_in_loops, unit_flops

HEAD = """
.visible .entry kernel(
    .param .u64 .ptr .global .align 1 kernel_param_0,
    .param .u64 .ptr .global .align 1 kernel_param_1,
    .param .u32 kernel_param_2
)
{
    ld.param.b64 %rd1, [kernel_param_0];
    ld.param.b64 %rd2, [kernel_param_1];
    ld.param.b32 %r1, [kernel_param_2];
"""


def reads(*lines: str) -> list[Read]:
    return reads_in_loops(HEAD + "\n".join(lines) + "\n}\n")


def test_a_load_is_traced_through_additions_to_its_pointer() -> None:
    assert reads(
        "mul.wide.s32 %rd3, %r1, 2;",
        "add.s64 %rd4, %rd2, %rd3;",
        "$L__BB0_1:",
        "add.s64 %rd5, %rd4, 64;",
        "@%p1 ld.global.v4.b32 { %r4, %r5, %r6, %r7 }, [ %rd5 + 0 ];",
        "@%p2 bra $L__BB0_1;",
    ) == [Read(frozenset({1}), 128)]


def test_a_pointer_that_moves_with_the_loop_is_the_same_one() -> None:
    assert reads(
        "mov.b64 %rd9, %rd1;",
        "$L__BB0_1:",
        "mov.b64 %rd8, %rd9;",
        "cp.async.cg.shared.global [ %r3 + 0 ], [ %rd8 + 0 ], 0x10, %r5;",
        "add.s64 %rd9, %rd8, 128;",
        "@%p2 bra $L__BB0_1;",
    ) == [Read(frozenset({0}), 128)]


def test_what_was_loaded_is_data_and_no_pointer() -> None:
    """A block table says where keys lie; it isn't among the keys."""
    assert reads(
        "$L__BB0_1:",
        "ld.global.b32 { %r8 }, [ %rd1 + 0 ];",
        "mad.wide.s32 %rd6, %r8, 256, %rd2;",
        "ld.global.nc.L1::no_allocate.b16 { %rs1 }, [ %rd6 + 0 ];",
        "@%p2 bra.uni $L__BB0_1;",
    ) == [Read(frozenset({0}), 32), Read(frozenset({1}), 16)]


def test_numbers_among_the_parameters_are_no_pointers() -> None:
    assert reads(
        "$L__BB0_1:",
        "mad.wide.s32 %rd6, %r1, 256, %rd2;",
        "ld.global.v2.b64 { %rd7, %rd8 }, [ %rd6 + 0 ];",
        "@%p2 bra $L__BB0_1;",
    ) == [Read(frozenset({1}), 128)]


def test_loads_outside_loops_are_not_told() -> None:
    assert reads("ld.global.b32 { %r8 }, [ %rd1 + 0 ];", "$L__BB0_1:", "@%p2 bra $L__BB0_1;") == []


def test_the_unit_s_descriptor_holds_rows_and_columns() -> None:
    """64 rows, 128 columns, sums of 16: as sm_100's tcgen05.mma takes them."""
    descriptor = (64 // 16) << 24 | (128 // 8) << 17
    text = (
        f"mov.b32 %r9, {descriptor};\n"
        "@%p20 tcgen05.mma.cta_group::1.kind::f16 [ %r1216 + 0 ], %rd117, %rd118, %r9, %p19;\n"
    )
    assert unit_flops(text) == 2 * 64 * 128 * 16
    assert unit_flops("") == 0.0
