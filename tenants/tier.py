"""A tier: what a class of tenants may use. Values only."""

from __future__ import annotations

import msgspec


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """`weight` is the tier's share of tokens inside a class (`paid` 4, `free` 1)."""

    name: str
    weight: int
    max_output_tokens: int


FREE = Tier(name="free", weight=1, max_output_tokens=4096)
PAID = Tier(name="paid", weight=4, max_output_tokens=32768)
TIERS = {tier.name: tier for tier in (FREE, PAID)}
