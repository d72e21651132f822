"""Floats as whole numbers in the same order: their bits, with the negative ones turned around.

So floats can be bisected: there are as many whole numbers between two keys as floats between the two values.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keys_of(values):
    """float32 → int32, float64 → int64. 0.0 and -0.0 are equal; NaN is above all."""
    if values.dtype == tl.float64:
        bits = values.to(tl.int64, bitcast=True)
        keys = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    else:
        bits = values.to(tl.int32, bitcast=True)
        keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = tl.where(values == 0.0, 0, keys)
    return tl.where(values == values, keys, highest_key(keys.dtype))


@triton.jit
def value_of(key):
    """The way back."""
    if key.dtype == tl.int64:
        return (key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
    else:  # kept, or Triton compiles what follows for int64 as well
        return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.constexpr_function
def highest_key(key_type):
    """NaN's."""
    return 0x7FFFFFFFFFFFFFFF if key_type == tl.int64 else 0x7FFFFFFF


@triton.constexpr_function
def lowest_key(key_type):
    """Below that of every value."""
    return -0x8000000000000000 if key_type == tl.int64 else -0x80000000


@triton.constexpr_function
def lowest_finite_key(key_type):
    return -0x7FF0000000000000 if key_type == tl.int64 else -0x7F800000


@triton.jit
def is_finite(value):
    """NaN compares with nothing."""
    return (value > float("-inf")) & (value < float("inf"))


@triton.jit
def reached_by(keys, count, best_key):
    """The highest key that `count` of `keys` reach; the lowest finite one if not so many are finite."""
    low = tl.full([], lowest_finite_key(keys.dtype), keys.dtype)
    high = best_key + 1
    while low + 1 < high:
        middle = midway(low, high)
        is_head = keys >= middle
        if tl.sum(is_head.to(tl.int32), axis=0) >= count:
            low = tl.min(tl.where(is_head, keys, highest_key(keys.dtype)), axis=0)
        else:
            high = tl.max(tl.where(is_head, lowest_key(keys.dtype), keys), axis=0) + 1
    return low


@triton.jit
def midway(low, high):
    """Half of a sum that would overflow, rounded down."""
    return (low & high) + ((low ^ high) >> 1)
