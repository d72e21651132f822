"""A product of two tiles, the same compiled and interpreted."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def tile_dot(a, b):
    """a [M, K] · b [K, N], summed in float32; float32 tiles are multiplied as such, not as tf32."""
    # The interpreter would multiply bfloat16 as the integers that hold its bits.
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
