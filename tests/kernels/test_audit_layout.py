"""Layouts against Triton's own account of them: who holds which element, and where shared memory has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from triton._C.libtriton import gluon_ir, ir, nvidia
from triton.experimental.gluon.language import (
    BlockedLayout,
    DotOperandLayout,
    NVMMADistributedLayout,
    NVMMASharedLayout,
    SliceLayout,
    SwizzledSharedLayout,
)

from kernels.audit.bank_conflicts import placed
from kernels.audit.layout import Layout, UnknownLayout, bases, parse, parse_aliases

BLOCKED = BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
NARROW = BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0])
SQUARE = BlockedLayout([2, 2], [4, 8], [4, 1], [1, 0])
WARPS = NVMMADistributedLayout([2, 0], [1, 4], [16, 8])
GROUPS = NVMMADistributedLayout([3, 0], [8, 1], [16, 128, 16])


@pytest.fixture(scope="module")
def triton_s() -> Iterator[Callable[..., Any]]:
    """What turns a layout into bases, as the compiler does."""
    context = ir.context()  # the builder needs it, but does not hold it
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    yield lambda layout, shape: builder.to_linear_layout(layout._to_ir(builder), shape)
    del context


def ours(layout: Any) -> Layout:
    """The same layout as the IR prints it."""
    if isinstance(layout, SliceLayout):
        return Layout("slice", {"dim": layout.dim, "parent": ours(layout.parent)})
    if isinstance(layout, DotOperandLayout):
        fields = {"opIdx": layout.operand_index, "kWidth": layout.k_width, "parent": ours(layout.parent)}
        return Layout("dot_op", fields)
    if isinstance(layout, NVMMADistributedLayout):
        return Layout("nvidia_mma", {"instrShape": layout.instr_shape, "warpsPerCTA": layout.warps_per_cta})
    return Layout(
        "blocked",
        {
            "sizePerThread": layout.size_per_thread,
            "threadsPerWarp": layout.threads_per_warp,
            "warpsPerCTA": layout.warps_per_cta,
            "order": layout.order,
        },
    )


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (BLOCKED, [64, 128]),
        (BLOCKED, [16, 64]),  # narrower than a warp is wide
        (BlockedLayout([1], [32], [4], [0]), [64]),
        (NARROW, [16, 16]),
        (SQUARE, [32, 16]),
        (WARPS, [16, 64]),
        (GROUPS, [128, 128]),
        (SliceLayout(1, BLOCKED), [64]),
        (SliceLayout(0, WARPS), [64]),
        (SliceLayout(1, GROUPS), [128]),
        (DotOperandLayout(0, WARPS, 2), [16, 128]),
        (DotOperandLayout(1, WARPS, 2), [128, 64]),
        (DotOperandLayout(1, WARPS, 4), [64, 64]),
        (DotOperandLayout(0, WARPS, 1), [16, 64]),
        (DotOperandLayout(0, GROUPS, 2), [128, 64]),
        (DotOperandLayout(0, NARROW, 0), [16, 64]),
        (DotOperandLayout(1, NARROW, 0), [64, 16]),
        (DotOperandLayout(1, SQUARE, 0), [16, 64]),
    ],
)
def test_lanes_and_registers_hold_what_triton_says(triton_s: Any, layout: Any, shape: list[int]) -> None:
    theirs = triton_s(layout, shape)
    found = bases(ours(layout), shape)
    assert found.lanes == tuple(map(tuple, theirs.lane_bases))
    assert set(found.registers) == {tuple(base) for base in theirs.reg_bases if any(base)}


@pytest.mark.parametrize(
    ("vec", "per_phase", "max_phase", "order", "shape", "bits"),
    [
        (8, 1, 8, [1, 0], [64, 128], 16),
        (8, 1, 8, [0, 1], [128, 64], 16),
        (8, 2, 4, [1, 0], [32, 32], 16),
        (8, 4, 2, [1, 0], [64, 16], 16),
        (4, 1, 8, [1, 0], [32, 64], 32),
        (1, 1, 1, [1, 0], [16, 64], 32),
        (1, 1, 1, [0], [64], 32),
    ],
)
def test_swizzled_elements_lie_where_triton_puts_them(
    triton_s: Any, vec: int, per_phase: int, max_phase: int, order: list[int], shape: list[int], bits: int
) -> None:
    theirs = triton_s(SwizzledSharedLayout(vec, per_phase, max_phase, order), shape)
    fields = {"vec": vec, "perPhase": per_phase, "maxPhase": max_phase, "order": order}
    assert_same_places(theirs, Layout("swizzled_shared", fields), shape, bits)


@pytest.mark.parametrize(
    ("width", "transposed", "shape", "bits"),
    [
        (128, False, [64, 128], 16),  # two panels
        (128, True, [128, 64], 16),
        (128, False, [64, 64], 32),
        (128, False, [64, 256], 8),
        (64, False, [64, 32], 16),
        (32, False, [64, 16], 16),
        (0, False, [64, 64], 16),
    ],
)
def test_operands_of_matrix_units_lie_where_triton_puts_them(
    triton_s: Any, width: int, transposed: bool, shape: list[int], bits: int
) -> None:
    theirs = triton_s(NVMMASharedLayout(width, bits, 2, transposed=transposed), shape)
    fields = {"swizzlingByteWidth": width, "transposed": transposed, "elementBitWidth": bits}
    assert_same_places(theirs, Layout("nvmma_shared", fields), shape, bits)


def assert_same_places(theirs: Any, layout: Layout, shape: list[int], bits: int) -> None:
    """Theirs goes the other way: an offset's bits stand for parts of the element's coordinates."""
    place = placed(layout, shape, bits // 8)
    elements = [(0,) * len(shape)]
    for base in theirs.offset_bases:
        elements += [tuple(x ^ y for x, y in zip(element, base, strict=True)) for element in elements]
    assert [place(element) for element in elements] == [bits // 8 * i for i in range(math.prod(shape))]


TTGIR = """
#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [1, 4], instrShape = [16, 8]}>
#tmem = #ttng.tensor_memory_encoding<blockM = 64, blockN = 128, colStride = 1>
#smem = #ttg.shared_memory
module {}
"""


def test_layouts_are_read_with_what_they_refer_to() -> None:
    aliases = parse_aliases(TTGIR)
    assert aliases["#blocked"] == ours(BlockedLayout([1], [32], [4], [0]))
    assert aliases["#tmem"].fields == {"blockM": 64, "blockN": 128, "colStride": 1}
    operand = parse("#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>", aliases)
    assert operand.kind == "dot_op"
    assert operand.fields["parent"] is aliases["#mma"]


def test_a_layout_that_is_not_known_says_so() -> None:
    with pytest.raises(UnknownLayout):
        bases(Layout("amd_wmma", {}), [16, 16])
    with pytest.raises(UnknownLayout):
        placed(Layout("padded_shared", {}), [16, 16], 2)
