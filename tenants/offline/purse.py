"""A purse: money of one budget that a gateway reserved beforehand, to serve from while it can't ask.

It is a reservation like any other, so what is spent from it was never anybody else's. It is small, and there
only while the budget is far from its end, so that it takes nothing that its tenant would miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Standing
from tenants.ledger.settlement import Settlement
from tenants.ledger.windows import day_of, to_us
from tenants.terms import Limits, Prices

PER_BUDGET = 100
"""A purse is this part of the smallest budget."""
TAKE_FROM = 20
"""Taken while this many times its amount is left of each budget, ..."""
KEEP_FROM = 10
"""... and given back below this."""
GOOD_FOR_S = 300.0
"""From its last renewal on. What is let in then has 600 s to end, within `PURSE_LEASE_S` in sum."""
MAX_AMOUNT = 9 * 10**9
"""Times 10^6, which is what one token below costs, it is still counted exactly by the record."""
_ONE_EACH = Prices(input=10**6, output=10**6)
"""As many micro-units as tokens."""


class Holder(NamedTuple):
    """Whose purse: the tenant's, or that of a key with a budget of its own, which holds the tenant's too."""

    tenant_id: str
    key_id: str | None


class Purse(msgspec.Struct, frozen=True):
    """`ask` reserved it, in the windows of one UTC day: the next one's money is not in it."""

    holder: Holder
    ask: Ask

    @property
    def purse_id(self) -> str:
        return self.ask.request_id

    @property
    def amount(self) -> int:
        return self.ask.prompt_tokens + self.ask.max_tokens

    def pays_at(self, unix_s: float) -> bool:
        """Only on its own day."""
        return _day_of(unix_s) == _day_of(self.ask.started_at)


def given_back(ask: Ask, now: float) -> Settlement:
    """Of a purse, or of a request that never ran: all that it took is everybody's again. Unix seconds."""
    return Settlement.of(ask, ended_at=now, outcome="unserved")


def holder_of(ask: Ask) -> Holder | None:
    """Whose purse would pay for it; None: it has no budget and needs no purse."""
    with_budget = [scope.key_id for scope in ask.scopes if _budgets([scope])]
    if not with_budget:
        return None
    return Holder(ask.tenant_id, next(filter(None, with_budget), None))


def amount_to_hold(scopes: Sequence[Scope], standing: Standing, held: int) -> int:
    """Micro-units, 0 for none, of a holder that stands so; `held`: what it holds now."""
    amount = min(min(_budgets(scopes), default=0) // PER_BUDGET, MAX_AMOUNT)
    budgets = [gauge for gauge in standing.gauges if gauge.kind in ("budget_day", "budget_month")]
    left = min((gauge.remaining for gauge in budgets), default=0)
    return amount if left >= (KEEP_FROM if held else TAKE_FROM) * amount else 0


def purse_ask(of: Ask, purse_id: str, amount: int, now: float) -> Ask:
    """What reserves a purse for who asked `of`: all of its money from the same budgets, or none, and nothing
    of any rate.
    """
    money_only = (Scope(scope.key_id, _only_budgets(scope.limits)) for scope in of.scopes)
    return msgspec.structs.replace(
        of,
        request_id=purse_id,
        started_at=now,
        scopes=tuple(money_only),
        prices=_ONE_EACH,
        prompt_tokens=amount - 1,
        n=1,
        max_tokens=1,
        is_purse=True,
    )


def _only_budgets(limits: Limits) -> Limits:
    return Limits(budget_day=limits.budget_day, budget_month=limits.budget_month)


def _budgets(scopes: Sequence[Scope]) -> list[int]:
    both = ((scope.limits.budget_day, scope.limits.budget_month) for scope in scopes)
    return [budget for pair in both for budget in pair if budget is not None]


def _day_of(unix_s: float) -> int:
    return day_of(to_us(unix_s))
