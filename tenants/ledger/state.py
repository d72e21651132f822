"""How one tenant's limits stand at one moment, raw: what both stores find, and all arithmetic starts from."""

from __future__ import annotations

import msgspec

from tenants.ledger.grant import Kind

RATES: tuple[Kind, Kind, Kind] = ("requests", "input_tokens", "output_tokens")
"""The order of everything that is kept for each of the three rates."""
Levels = tuple[int, int, int]
MAX_CREDIT = 4 * 10**15


class Spend(msgspec.Struct, frozen=True, array_like=True):
    """One window of money, in micro-units."""

    spent: int = 0
    reserved: int = 0
    credit: int = 0
    """Added to the budget."""

    def available(self, budget: int) -> int:
        """Negative after a budget was lowered."""
        return budget + self.credit - self.spent - self.reserved

    def changed(self, *, spent: int = 0, reserved: int = 0) -> Spend:
        """With so much more spent and reserved; negative: less. No window ever lends what was reserved."""
        return Spend(self.spent + spent, max(0, self.reserved + reserved), self.credit)

    def credited(self, amount: int | None) -> Spend:
        """A top-up. None, a reset: what was spent is forgiven; what runs stays reserved."""
        credit = max(self.credit, self.spent) if amount is None else self.credit + amount
        return Spend(self.spent, self.reserved, max(-MAX_CREDIT, min(MAX_CREDIT, credit)))


class ScopeState(msgspec.Struct, frozen=True, array_like=True):
    levels: Levels
    """Drained to this moment; of a rate without limit it says nothing."""
    leases: int
    """Requests whose lease has not ended."""
    day: Spend
    month: Spend


class State(msgspec.Struct, frozen=True, array_like=True):
    now_us: int
    estimate: int
    """Output tokens of an answer."""
    scopes: tuple[ScopeState, ...]
