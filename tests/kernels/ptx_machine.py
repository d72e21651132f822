"""Runs the few PTX instructions that our kernels are written in, on many values at once.

For what Triton's interpreter cannot run and a compiler does not check: that the bits come out right.
Semantics as in NVIDIA's PTX ISA, chapter 9.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
_INSTRUCTION = re.compile(r"([a-z0-9.]+) ([^;]+);")


def run(text: str, argument: Tensor, num_results: int) -> list[Tensor]:
    """`text` is inline assembly: $0, $1, … are its results, the next one its argument (32 bits in int64)."""
    registers: dict[str, Tensor] = {f"${num_results}": argument}
    for operation, operands in _INSTRUCTION.findall(re.sub(r"\.reg [^;]+;|[{}]", "", text)):
        target, *sources = (operand.strip() for operand in operands.split(","))
        values = [_value(source, registers, argument) for source in sources]
        registers[target] = OPERATIONS[operation](*values) & WORD
    return [registers[f"${result}"] for result in range(num_results)]


def halves(words: Tensor, dtype: torch.dtype) -> Tensor:
    """[n] words as the two numbers of each, lower first: [n, 2]."""
    return torch.stack((words & 0xFFFF, words >> 16), dim=1).to(torch.uint16).view(dtype)


def _value(operand: str, registers: dict[str, Tensor], like: Tensor) -> Tensor:
    return torch.full_like(like, int(operand, 0)) if operand[0].isdigit() else registers[operand]


def _lop3(a: Tensor, b: Tensor, c: Tensor, table: Tensor) -> Tensor:
    """Bit n of the table is the result where a, b and c have the bits of n."""
    result = torch.zeros_like(a)
    for row in range(8):
        if int(table[0]) >> row & 1:
            result |= _if_set(a, row & 4) & _if_set(b, row & 2) & _if_set(c, row & 1)
    return result


def _if_set(word: Tensor, is_set: int) -> Tensor:
    return word if is_set else ~word


def _prmt(a: Tensor, b: Tensor, selector: Tensor) -> Tensor:
    """Byte n of the result is the one of (b, a) that nibble n names."""
    both = [word >> (8 * byte) & 0xFF for word in (a, b) for byte in range(4)]
    nibbles = [int(selector[0]) >> (4 * n) & 0xF for n in range(4)]
    assert max(nibbles) < 8, "a sign, not a byte"
    result = torch.zeros_like(a)
    for n, nibble in enumerate(nibbles):
        result |= both[nibble] << (8 * n)
    return result


def _packed(compute: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    def on_halves(*words: Tensor) -> Tensor:
        computed = compute(*(halves(word, dtype).double() for word in words)).to(dtype)
        lower, upper = computed.view(torch.uint16).long().unbind(dim=1)
        return lower | upper << 16

    return on_halves


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "shr.u32": lambda a, b: a >> b,
    "lop3.b32": _lop3,
    "prmt.b32": _prmt,
    "sub.rn.f16x2": _packed(lambda a, b: a - b, torch.float16),
    "mul.rn.f16x2": _packed(lambda a, b: a * b, torch.float16),
    "fma.rn.bf16x2": _packed(lambda a, b, c: a * b + c, torch.bfloat16),
}
