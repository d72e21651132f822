"""A change of what a budget still pays for: the one line that spool and ledger both have of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenants.audit import Actor
from tenants.ledger.ask import MAX_EXACT, MAX_TIME_S, TENANT

MAX_TOP_UP = 10**15

BudgetWindow = Literal["day", "month"]


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """One top-up or reset of one window of a budget. It touches no usage.

    A top-up adds `amount` micro-units to the budget. A reset makes all of it available again, top-ups
    included: `amount` is what was spent when it was asked for, and so much is forgiven from then on. Said as
    an amount it means the same whenever it is applied, and in whatever order.
    """

    adjustment_id: str
    """Random; it is applied once by it."""
    tenant_id: str
    key_id: str | None
    """Of the key whose own budget it is; None: the tenant's."""
    window: BudgetWindow
    action: Literal["top_up", "reset"]
    amount: int
    at: float
    """Unix seconds, by the ledger's clock: it is of the window that ran then."""
    by: Actor

    @property
    def who(self) -> str:
        return self.key_id or TENANT

    @property
    def credit(self) -> int:
        return self.amount if self.action == "top_up" else 0

    @property
    def forgiven(self) -> int:
        return self.amount if self.action == "reset" else 0

    @property
    def hour(self) -> int:
        """Of `at`, in hours since the epoch: with the id it tells adjustments apart."""
        return int(self.at // 3600)

    def check(self) -> None:
        """Raises ValueError, naming the field, for what cannot be counted exactly."""
        most = MAX_TOP_UP if self.action == "top_up" else MAX_EXACT - 1
        if abs(self.amount) > most:
            raise ValueError(f"amount must be within ±{most}, not {self.amount}")
        if not 0 <= self.at <= MAX_TIME_S:
            raise ValueError(f"at must be Unix seconds, not {self.at}")
