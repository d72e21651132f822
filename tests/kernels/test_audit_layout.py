"""Layouts against Triton's own account of them: who holds which element, and where shared memory has it."""

from __future__ import annotations

import json
import math

import pytest

from kernels.audit.bank_conflicts import placed
from kernels.audit.layout import Layout, UnknownLayout, bases, parse, parse_aliases
from tests.kernels.audit_layouts import REGISTERS, SHARED, STORED, blocked

TOLD = json.loads(STORED.read_text())


@pytest.mark.parametrize("number", range(len(REGISTERS)))
def test_lanes_and_registers_hold_what_triton_says(number: int) -> None:
    layout, shape = REGISTERS[number]
    told = TOLD["registers"][number]
    found = bases(layout, shape)
    assert [list(base) for base in found.lanes] == told["lanes"]
    assert sorted(map(list, found.registers)) == sorted(base for base in told["registers"] if any(base))


@pytest.mark.parametrize("number", range(len(SHARED)))
def test_elements_lie_where_triton_puts_them(number: int) -> None:
    """Its account goes the other way: an offset's bits stand for parts of an element's coordinates."""
    layout, shape, bits = SHARED[number]
    place = placed(layout, shape, bits // 8)
    elements = [(0,) * len(shape)]
    for base in TOLD["shared"][number]:
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
    assert aliases["#blocked"] == blocked([1], [32], [4], [0])
    assert aliases["#tmem"].fields == {"blockM": 64, "blockN": 128, "colStride": 1}
    read = parse("#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>", aliases)
    assert read.kind == "dot_op"
    assert read.fields["parent"] is aliases["#mma"]


def test_a_layout_that_is_not_known_says_so() -> None:
    with pytest.raises(UnknownLayout):
        bases(Layout("amd_wmma", {}), [16, 16])
    with pytest.raises(UnknownLayout):
        placed(Layout("padded_shared", {}), [16, 16], 2)
