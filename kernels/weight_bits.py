"""Numbers of 8 and 4 bits as operands of a tile product.

They are converted by their bits, four bytes at a time, as whole numbers: exact in float16 and bfloat16. The
instructions made for it run at a quarter of the speed. A byte is put under one that makes it a number with a
last bit of 1 (0x6400 is 1024 in float16, 0x4300 is 128 in bfloat16), from which that number is subtracted.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.tile_dot import INTERPRETED

# 1024 + (byte + 128) less 1152.
INT8_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 positive, bias;
    mov.b32 bias, 0x64806480;
    xor.b32 positive, $2, 0x80808080;
    prmt.b32 $0, positive, bias, 0x5150;
    prmt.b32 $1, positive, bias, 0x5352;
    sub.rn.f16x2 $0, $0, bias;
    sub.rn.f16x2 $1, $1, bias;
}""")
# 128 + the lower seven bits, less 128; 0x4380 is 256, so that a byte's sign makes it less 256.
INT8_TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 above, minus, low, high;
    mov.b32 above, 0x43434343;
    mov.b32 minus, 0xBF80BF80;
    prmt.b32 $0, $2, above, 0x4140;
    prmt.b32 $1, $2, above, 0x4342;
    and.b32 low, $0, 0xFF7FFF7F;
    and.b32 high, $0, 0xFF80FF80;
    fma.rn.bf16x2 $0, high, minus, low;
    and.b32 low, $1, 0xFF7FFF7F;
    and.b32 high, $1, 0xFF80FF80;
    fma.rn.bf16x2 $1, high, minus, low;
}""")


def _int4_to_float16(middle: int) -> tl.constexpr:
    bias = f"{0x6400 + middle:#x}"[2:] * 2
    return tl.constexpr(f"""{{
    .reg .b32 low, high, bias;
    mov.b32 bias, 0x{bias};
    and.b32 low, $4, 0x0F0F0F0F;
    shr.u32 high, $4, 4;
    and.b32 high, high, 0x0F0F0F0F;
    prmt.b32 $0, low, bias, 0x5150;
    prmt.b32 $1, low, bias, 0x5352;
    prmt.b32 $2, high, bias, 0x5150;
    prmt.b32 $3, high, bias, 0x5352;
    sub.rn.f16x2 $0, $0, bias;
    sub.rn.f16x2 $1, $1, bias;
    sub.rn.f16x2 $2, $2, bias;
    sub.rn.f16x2 $3, $3, bias;
}}""")


def _int4_to_bfloat16(middle: int) -> tl.constexpr:
    minus_bias = f"{0xC300 + middle:#x}"[2:] * 2
    return tl.constexpr(f"""{{
    .reg .b32 low, high, above, one, bias;
    mov.b32 above, 0x43434343;
    mov.b32 one, 0x3F803F80;
    mov.b32 bias, 0x{minus_bias};
    and.b32 low, $4, 0x0F0F0F0F;
    shr.u32 high, $4, 4;
    and.b32 high, high, 0x0F0F0F0F;
    prmt.b32 $0, low, above, 0x4140;
    prmt.b32 $1, low, above, 0x4342;
    prmt.b32 $2, high, above, 0x4140;
    prmt.b32 $3, high, above, 0x4342;
    fma.rn.bf16x2 $0, $0, one, bias;
    fma.rn.bf16x2 $1, $1, one, bias;
    fma.rn.bf16x2 $2, $2, one, bias;
    fma.rn.bf16x2 $3, $3, one, bias;
}}""")


INT4_TO_FLOAT16, CENTRED_INT4_TO_FLOAT16 = _int4_to_float16(0), _int4_to_float16(8)
INT4_TO_BFLOAT16, CENTRED_INT4_TO_BFLOAT16 = _int4_to_bfloat16(0), _int4_to_bfloat16(8)


@triton.jit
def from_int8(numbers, DTYPE: tl.constexpr):
    """int8 → DTYPE: float16, bfloat16, float32."""
    if INTERPRETED or tl.float32 == DTYPE:
        return numbers.to(tl.float32).to(DTYPE)
    elif tl.float16 == DTYPE:
        return tl.inline_asm_elementwise(
            INT8_TO_FLOAT16, "=&r,=&r,r", [numbers], tl.float16, is_pure=True, pack=4
        )
    else:
        return tl.inline_asm_elementwise(
            INT8_TO_BFLOAT16, "=&r,=&r,r", [numbers], tl.bfloat16, is_pure=True, pack=4
        )


@triton.jit
def from_int4(packed, DTYPE: tl.constexpr, IS_CENTRED: tl.constexpr):
    """uint8 → the lower and the higher four bits of each, 0..15 or centred -8..7, in DTYPE."""
    if INTERPRETED or tl.float32 == DTYPE:
        middle: tl.constexpr = 8.0 if IS_CENTRED else 0.0
        low = (packed & 0xF).to(tl.float32) - middle
        high = (packed >> 4).to(tl.float32) - middle
        return low.to(DTYPE), high.to(DTYPE)
    elif tl.float16 == DTYPE:
        to_float16: tl.constexpr = CENTRED_INT4_TO_FLOAT16 if IS_CENTRED else INT4_TO_FLOAT16
        types: tl.constexpr = (tl.float16, tl.float16)
        return tl.inline_asm_elementwise(
            to_float16, "=&r,=&r,=&r,=&r,r", [packed], types, is_pure=True, pack=4
        )
    else:
        to_bfloat16: tl.constexpr = CENTRED_INT4_TO_BFLOAT16 if IS_CENTRED else INT4_TO_BFLOAT16
        wide_types: tl.constexpr = (tl.bfloat16, tl.bfloat16)
        return tl.inline_asm_elementwise(
            to_bfloat16, "=&r,=&r,=&r,=&r,r", [packed], wide_types, is_pure=True, pack=4
        )
