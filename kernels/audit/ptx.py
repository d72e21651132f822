"""Who reads what in a kernel's loops, from PTX: there, parameters still have an order and addresses a way.

An address in a load is traced back to the pointers that it was made of: each instruction's result depends
on what its operands depend on, but for loads, whose result is data. That is exact for code that adds
offsets to pointers, and errs towards more pointers, never fewer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"(\$L__BB\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+)")
_PARAMETER = re.compile(r"ld\.param\.\w+\s+(%\w+), \[\w+_param_(\d+)\]")
_POINTER = re.compile(r"\.param \.u64 \.ptr [^\n]*_param_(\d+)")
_LOAD = re.compile(r"ld\.(?:relaxed\.\w+\.)?global(?:\.[\w:]+)*?(?:\.v(\d))?\.[a-z](\d+)\s+[^\[]*\[ ?(%\w+)")
_COPY = re.compile(
    r"cp\.async\.c[ag]\.shared\.global(?:\.[\w:]+)* \[[^\]]*\], \[ ?(%\w+)[^\]]*\], (0x\w+|\d+)"
)
_REGISTER = re.compile(r"%\w+")
_UNIT_PRODUCT = re.compile(r"tcgen05\.mma\.\S*kind::(\w+) \[[^\]]*\], [^,]+, [^,]+, (%\w+)")
_CONSTANT = re.compile(r"mov\.b32\s+(%\w+), (\d+);")
UNIT_SUMMED = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""Products that one instruction sums for each element, by the kind of its operands."""


@dataclass(frozen=True, slots=True)
class Read:
    """A load from global memory."""

    pointers: frozenset[int]
    """Numbers of the parameters that its address is made of."""
    bits: int
    """A thread."""


def reads_in_loops(ptx: str) -> list[Read]:
    lines = _body(ptx)
    pointers = frozenset(int(number) for number in _POINTER.findall(ptx))
    origins = _origins(lines, pointers)
    in_loops = {line for start, end in _loops(lines) for line in range(start, end + 1)}
    return [
        Read(origins.get(address, frozenset()), bits)
        for line in sorted(in_loops)
        for address, bits in _read(lines[line])
    ]


def unit_flops(ptx: str) -> float:
    """Mean of the products by sm_100's unit: their descriptor is a constant that holds rows and columns."""
    constants = dict(_CONSTANT.findall(ptx))
    flops = []
    for kind, register in _UNIT_PRODUCT.findall(ptx):
        descriptor = int(constants.get(register, 0))
        columns, rows = (descriptor >> 17 & 0x3F) * 8, (descriptor >> 24 & 0x1F) * 16
        flops.append(2 * rows * columns * UNIT_SUMMED[kind])
    return sum(flops) / len(flops) if flops else 0.0


def _body(ptx: str) -> list[str]:
    lines = (line.split("//")[0].strip() for line in ptx.splitlines())
    return [line for line in lines if line and not line.startswith(".")]


def _loops(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """From a label to the last jump back to it; loops inside others too."""
    labels = {found[1]: number for number, line in enumerate(lines) if (found := _LABEL.match(line))}
    for number, line in enumerate(lines):
        found = _BRANCH.search(line)
        if found and labels[found[1]] < number:
            yield labels[found[1]], number


def _read(line: str) -> Iterator[tuple[str, int]]:
    """The register of the address, and the width."""
    if found := _LOAD.search(line):
        yield found[3], int(found[1] or 1) * int(found[2])
    elif found := _COPY.search(line):
        yield found[1], 8 * int(found[2], 0)


def _origins(lines: Sequence[str], pointers: frozenset[int]) -> dict[str, frozenset[int]]:
    """Register → pointers that it depends on."""
    origins: dict[str, frozenset[int]] = {}
    followers: defaultdict[str, set[str]] = defaultdict(set)
    for line in lines:
        if found := _PARAMETER.search(line):
            origins[found[1]] = pointers & {int(found[2])}
        elif " " in line and not _is_data(line):
            result, *operands = _REGISTER.findall(re.sub(r"^@!?%\w+ ", "", line)) or [""]
            for operand in operands:
                followers[operand].add(result)
    waiting = list(origins)
    while waiting:
        register = waiting.pop()
        for follower in followers[register]:
            known = origins.get(follower, frozenset())
            if not origins[register] <= known:
                origins[follower] = known | origins[register]
                waiting.append(follower)
    return origins


def _is_data(line: str) -> bool:
    """A result that no longer tells of the operands' pointers."""
    return (
        re.match(r"(?:@!?%\w+ )?(?:ld|st|cp|setp|bra|call|atom|red|mma|ldmatrix|wgmma|tcgen05)\b", line)
        is not None
    )
