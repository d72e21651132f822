"""What tokens cost, exactly: integers throughout, rounded up once a request."""

from __future__ import annotations

from tenants.terms import Prices

PER_TOKENS = 10**6


def cost(prices: Prices, *, prompt_tokens: int, cached_tokens: int = 0, completion_tokens: int = 0) -> int:
    """Micro-units. `cached_tokens` are part of `prompt_tokens` and priced apart."""
    raw = (
        (prompt_tokens - cached_tokens) * prices.input
        + cached_tokens * prices.cached_input
        + completion_tokens * prices.output
    )
    return -(-raw // PER_TOKENS)
