"""What one gateway lets a tenant take of its limits while nobody can ask the record."""

from __future__ import annotations

from tenants.terms import Limits


def local_share(limits: Limits, num_gateways: int) -> Limits:
    """Rates and concurrency divided by the gateways that live, at least 1 each, and no budget: what may be
    spent is what the gateway's purse holds.

    Shares that were rounded up to 1 together exceed the limit; each gateway's burst begins unused.
    """
    return Limits(
        requests_per_min=_share(limits.requests_per_min, num_gateways),
        input_tokens_per_min=_share(limits.input_tokens_per_min, num_gateways),
        output_tokens_per_min=_share(limits.output_tokens_per_min, num_gateways),
        burst_s=limits.burst_s,
        max_concurrency=_share(limits.max_concurrency, num_gateways),
    )


def _share(limit: int | None, num_gateways: int) -> int | None:
    return None if limit is None else max(limit // num_gateways, 1)
