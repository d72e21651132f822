"""What is known of an open reservation, and what becomes of it when its gateway dies."""

from __future__ import annotations

import msgspec

from tenants.ledger.ask import Ask
from tenants.ledger.money import cost
from tenants.ledger.settlement import Settlement
from tenants.terms import Prices


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Those fields of its `Ask` that a `Settlement` needs."""

    request_id: str
    tenant_id: str
    key_id: str
    model: str
    gateway_id: str
    started_at: float
    prices: Prices
    prompt_tokens: int
    n: int
    is_purse: bool


class Told(msgspec.Struct, frozen=True, array_like=True):
    """By the last renewal."""

    cached_tokens: int
    completion_tokens: int


def reservation_of(ask: Ask) -> Reservation:
    return Reservation(**{name: getattr(ask, name) for name in Reservation.__struct_fields__})


def reaped(reservation: Reservation, told: Told | None, now_us: int) -> Settlement:
    """`told` None: it was never renewed. Then nobody knows that it ever ran, and it costs nothing, as
    a purse does: its money comes back.
    """
    if told is None or reservation.is_purse:
        return _settlement(reservation, now_us, prompt_tokens=0, cached_tokens=0, completion_tokens=0)
    return _settlement(
        reservation,
        now_us,
        prompt_tokens=reservation.prompt_tokens,
        cached_tokens=min(told.cached_tokens, reservation.prompt_tokens),
        completion_tokens=told.completion_tokens,
    )


def _settlement(reservation: Reservation, now_us: int, **tokens: int) -> Settlement:
    return Settlement(
        request_id=reservation.request_id,
        tenant_id=reservation.tenant_id,
        key_id=reservation.key_id,
        model=reservation.model,
        gateway_id=reservation.gateway_id,
        started_at=reservation.started_at,
        ended_at=now_us / 10**6,
        outcome="reaped",
        n=reservation.n,
        cost=cost(reservation.prices, **tokens),
        **tokens,
    )
