"""How long a tenant's answers are with one model: a running 90th percentile.

Stochastic approximation of a quantile (Robbins and Monro, 1951) with a step that follows the estimate: each
longer answer moves it up by nine steps, each other one down by one, so it rests where one in ten is longer.
Integers only, the same in Redis.
"""

from __future__ import annotations

FIRST_ESTIMATE = 256
"""Tokens, until answers have said more."""
MAX_ESTIMATE = 2**24
_STEPS = 64


def moved(estimate: int, tokens: int) -> int:
    """The estimate after one more answer of so many tokens."""
    step = max(1, estimate // _STEPS)
    return min(MAX_ESTIMATE, estimate + 9 * step) if tokens > estimate else max(1, estimate - step)
