"""Tiles of int8 or float8 numbers as operands of a tile product, read as pairs: two bytes an int16.

A product wants 16 bits an operand, two neighbours along the summed dimension side by side. Values are
summed over keys, which a cache has a whole head apart, and the transposing load that brings them together
moves 16 bits at a time. So bytes stay in pairs until they are in registers, and each tile becomes two: its
even and its odd columns.

They are converted by their bits, four at a time: the instructions made for it run at a quarter of the speed
or less, slower than memory brings the numbers, and float8 has none before sm_89.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.tile_dot import INTERPRETED

KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "float8"}
"""The types, and what `even_and_odd` calls them."""

# Each makes two registers of two columns from one of two pairs: bytes 0 and 2, bytes 1 and 3.
# int8 as float16: 0x6400 is 1024 and its last bit counts 1, so 1024 + (byte + 128) less 1152.
INT8_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 odd, bias;
    mov.b32 bias, 0x64806480;
    shr.u32 odd, $2, 8;
    lop3.b32 $0, $2, 0x00FF00FF, 0x64806480, 0x6A;
    lop3.b32 $1, odd, 0x00FF00FF, 0x64806480, 0x6A;
    sub.rn.f16x2 $0, $0, bias;
    sub.rn.f16x2 $1, $1, bias;
}""")
# int8 as bfloat16: 0x4300 is 128 and its last bit counts 1; 0x4380 is 256, so that a byte's sign is the
# exponent's last bit. (128 + low bits) less 128, or less 256 if the byte is negative.
INT8_TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 odd, low, high, minus;
    mov.b32 minus, 0xBF80BF80;
    shr.u32 odd, $2, 8;
    lop3.b32 low, $2, 0x007F007F, 0x43004300, 0xEA;
    lop3.b32 high, $2, 0x00800080, 0x43004300, 0xEA;
    fma.rn.bf16x2 $0, high, minus, low;
    lop3.b32 low, odd, 0x007F007F, 0x43004300, 0xEA;
    lop3.b32 high, odd, 0x00800080, 0x43004300, 0xEA;
    fma.rn.bf16x2 $1, high, minus, low;
}""")
# float8: exponent and mantissa lie as in the wider type, whose exponent has a greater bias: a factor.
FLOAT8_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 even, low, factor;
    mov.b32 factor, 0x5C005C00;
    prmt.b32 even, $2, 0, 0x2404;
    and.b32 low, even, 0x7F007F00;
    shr.u32 low, low, 1;
    lop3.b32 $0, even, 0x80008000, low, 0xEA;
    and.b32 low, $2, 0x7F007F00;
    shr.u32 low, low, 1;
    lop3.b32 $1, $2, 0x80008000, low, 0xEA;
    mul.rn.f16x2 $0, $0, factor;
    mul.rn.f16x2 $1, $1, factor;
}""")
FLOAT8_TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 even, low, factor, zero;
    mov.b32 factor, 0x7B807B80;
    mov.b32 zero, 0x80008000;
    prmt.b32 even, $2, 0, 0x2404;
    and.b32 low, even, 0x7F007F00;
    shr.u32 low, low, 4;
    lop3.b32 $0, even, 0x80008000, low, 0xEA;
    and.b32 low, $2, 0x7F007F00;
    shr.u32 low, low, 4;
    lop3.b32 $1, $2, 0x80008000, low, 0xEA;
    fma.rn.bf16x2 $0, $0, factor, zero;
    fma.rn.bf16x2 $1, $1, factor, zero;
}""")


@triton.jit
def even_and_odd(pairs, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """Two tiles of DTYPE (float16, bfloat16, float32) from one of int16.

    Exact, but for NaN of float8, which becomes ±480: what is poisoned has its scale poisoned too.
    """
    if INTERPRETED or tl.float32 == DTYPE:
        return _low_byte(pairs, KIND).to(DTYPE), _low_byte(pairs >> 8, KIND).to(DTYPE)
    elif tl.float16 == DTYPE:
        to_float16: tl.constexpr = INT8_TO_FLOAT16 if KIND == "int8" else FLOAT8_TO_FLOAT16
        types: tl.constexpr = (tl.float16, tl.float16)
        return tl.inline_asm_elementwise(to_float16, "=&r,=&r,r", [pairs], types, is_pure=True, pack=2)
    else:
        to_bfloat16: tl.constexpr = INT8_TO_BFLOAT16 if KIND == "int8" else FLOAT8_TO_BFLOAT16
        wide_types: tl.constexpr = (tl.bfloat16, tl.bfloat16)
        return tl.inline_asm_elementwise(to_bfloat16, "=&r,=&r,r", [pairs], wide_types, is_pure=True, pack=2)


@triton.jit
def _low_byte(x, KIND: tl.constexpr):
    """In float32."""
    x = x.to(tl.int32)
    if KIND == "int8":
        # 0x4B000000 is 2^23 and its last bit counts 1.
        return ((x & 0xFF) ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0
    else:
        return (((x & 0x80) << 24) | ((x & 0x7F) << 20)).to(tl.float32, bitcast=True) * 1.329227995784916e36
