"""A tier: a named set of terms. The record holds them; those below are there from its start."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tenants.terms import Terms

TierName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    name: TierName
    terms: Terms
    version: int = 1
    """Grows with each change; its ETag."""


FREE = Tier(
    name="free",
    terms=Terms(
        weight=1,
        requests_per_min=60,
        input_tokens_per_min=100_000,
        output_tokens_per_min=20_000,
        max_concurrency=8,
        max_queue_len=32,
        max_output_tokens=4096,
    ),
)
PAID = Tier(
    name="paid",
    terms=Terms(
        weight=4,
        requests_per_min=3_000,
        input_tokens_per_min=5_000_000,
        output_tokens_per_min=1_000_000,
        max_concurrency=256,
        max_queue_len=1024,
        max_output_tokens=32_768,
        offline="serve",
    ),
)
UNLIMITED = Tier(name="unlimited", terms=Terms(max_output_tokens=32_768, offline="serve"))
"""For an operator's own load tests."""
BUILT_IN = (FREE, PAID, UNLIMITED)
