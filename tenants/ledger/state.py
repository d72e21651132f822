"""How one tenant's limits stand at one moment, raw: what both stores find, and all arithmetic starts from."""

from __future__ import annotations

from typing import NamedTuple

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
    """Added to the budget by top-ups, which no reset takes away."""
    forgiven: int = 0
    """Of what was spent, so much does not count: all that there was at the last reset."""

    @property
    def used(self) -> int:
        """What counts of what was spent. Where less is known to be spent than was forgiven, nothing more is
        given for it: the rest of the spend may be told later.
        """
        return max(0, self.spent - self.forgiven)

    def available(self, budget: int) -> int:
        """Negative after a budget was lowered."""
        return budget + self.credit - self.used - self.reserved

    def changed(self, *, spent: int = 0, reserved: int = 0) -> Spend:
        """With so much more spent and reserved; negative: less. No window ever lends what was reserved."""
        return Spend(self.spent + spent, max(0, self.reserved + reserved), self.credit, self.forgiven)

    def adjusted(self, *, credit: int, forgiven: int) -> Spend:
        """Topped up by `credit`, and reset when `forgiven` had been spent; what runs stays reserved."""
        bounded = max(-MAX_CREDIT, min(MAX_CREDIT, self.credit + credit))
        return Spend(self.spent, self.reserved, bounded, max(self.forgiven, forgiven))


class Spends(NamedTuple):
    """Both windows of somebody's money that run at `now_us`."""

    now_us: int
    day: Spend
    month: Spend


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
