"""What is known of an open reservation, and what becomes of it when its gateway dies."""

from __future__ import annotations

import msgspec

from tenants.ledger.ask import Ask
from tenants.ledger.settlement import Settlement
from tenants.ledger.windows import day_of, to_us
from tenants.terms import Prices


class ReservedAsk(msgspec.Struct, frozen=True, kw_only=True):
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


class Held(msgspec.Struct, frozen=True):
    """A reservation as its gateway knows it, whatever the ledger does."""

    ask: Ask
    cost: int
    """Micro-units that are reserved for it."""

    @property
    def day(self) -> int:
        """In whose windows, in days since the epoch."""
        return day_of(to_us(self.ask.started_at))

    @property
    def hour(self) -> int:
        """Of `started_at`, as of its `Settlement`."""
        return int(self.ask.started_at // 3600)


class Told(msgspec.Struct, frozen=True, array_like=True):
    """By the last renewal."""

    cached_tokens: int
    completion_tokens: int


def reservation_of(ask: Ask) -> ReservedAsk:
    return ReservedAsk(**{name: getattr(ask, name) for name in ReservedAsk.__struct_fields__})


def reaped(reservation: ReservedAsk, told: Told | None, now_us: int) -> Settlement:
    """What was told counts from the first output token on. Before that (`told` None: it was never renewed)
    nobody had anything of it, and it costs nothing, as a purse does: its money comes back.
    """
    if told is None or not told.completion_tokens or reservation.is_purse:
        return Settlement.of(reservation, ended_at=now_us / 10**6, outcome="reaped")
    return Settlement.of(
        reservation,
        ended_at=now_us / 10**6,
        outcome="reaped",
        prompt_tokens=reservation.prompt_tokens,
        cached_tokens=min(told.cached_tokens, reservation.prompt_tokens),
        completion_tokens=told.completion_tokens,
    )
