"""Tokens of service: the one currency in which tenants share, wait, and are compared.

An uncached input token counts 1, for it is computed; a cached one 0.1, for it only takes room; an output
token 1, as it comes. Money has prices of its own, and limits do not count a cached token.
"""

from __future__ import annotations

CACHED_INPUT_WEIGHT = 0.1


def service_tokens(uncached_tokens: int, cached_tokens: int = 0, output_tokens: int = 0) -> float:
    return uncached_tokens + CACHED_INPUT_WEIGHT * cached_tokens + output_tokens
