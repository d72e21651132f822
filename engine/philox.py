"""Philox4x32-10: random numbers that are a function of (seed, position), so any replica can draw them.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF

Words = tuple[int, int, int, int]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four 32-bit words for a counter of four and a key of two 32-bit words."""
    a, b, c, d = counter
    key_a, key_b = key
    for _ in range(_ROUNDS):
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (right >> 32) ^ b ^ key_a,
            right & _MASK,
            (left >> 32) ^ d ^ key_b,
            left & _MASK,
        )
        key_a, key_b = (key_a + _KEY_STEPS[0]) & _MASK, (key_b + _KEY_STEPS[1]) & _MASK
    return a, b, c, d


def uniform(seed: int, output_index: int, sibling: int) -> float:
    """The number in [0, 1) that output `output_index` is drawn with; a multiple of 2^-24.

    `seed` is taken mod 2^64.
    """
    key = (seed & _MASK, seed >> 32 & _MASK)
    word = philox4x32((output_index & _MASK, sibling & _MASK, 0, 0), key)[0]
    return (word >> 8) * 2.0**-24
