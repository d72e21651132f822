"""From raw state to what clients and operators are told: limit, remaining, reset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tenants.ledger.ask import Scope
from tenants.ledger.grant import Gauge, Kind, Standing
from tenants.ledger.meter import meters
from tenants.ledger.state import RATES, ScopeState, Spend, State
from tenants.ledger.windows import day_ends_us, day_of, month_ends_us, month_of

CONCURRENCY_RETRY_S = 1
"""An estimate: nobody knows when a running request ends."""
_US = 10**6


def standing(scopes: Sequence[Scope], state: State) -> Standing:
    """One gauge for each limit of `scopes`, in their order."""
    pairs = zip(scopes, state.scopes, strict=True)
    return Standing(tuple(gauge for scope, found in pairs for gauge in _gauges(scope, found, state.now_us)))


def _gauges(scope: Scope, found: ScopeState, now_us: int) -> Iterator[Gauge]:
    limits, key_id = scope.limits, scope.key_id
    for kind, meter, level in zip(RATES, meters(limits), found.levels, strict=True):
        if meter is not None:
            yield _gauge(kind, key_id, meter.burst, meter.remaining(level), meter.reset_us(level) / _US)
    if (most := limits.max_concurrency) is not None:
        reset_s = CONCURRENCY_RETRY_S if found.leases else 0
        yield _gauge("concurrency", key_id, most, max(0, most - found.leases), reset_s)
    day = day_of(now_us)
    if (budget := limits.budget_day) is not None:
        yield _of_budget("budget_day", key_id, budget, found.day, day_ends_us(day) - now_us)
    if (budget := limits.budget_month) is not None:
        yield _of_budget("budget_month", key_id, budget, found.month, month_ends_us(month_of(day)) - now_us)


def _of_budget(kind: Kind, key_id: str | None, budget: int, spend: Spend, left_us: int) -> Gauge:
    is_untouched = not (spend.used or spend.reserved)
    remaining = max(0, spend.available(budget))
    return _gauge(
        kind, key_id, max(0, budget + spend.credit), remaining, 0 if is_untouched else left_us / _US
    )


def _gauge(kind: Kind, key_id: str | None, limit: int, remaining: int, reset_s: float) -> Gauge:
    return Gauge(kind=kind, key_id=key_id, limit=limit, remaining=remaining, reset_s=float(reset_s))
