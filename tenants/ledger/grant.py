"""What the ledger answers: how a tenant stands, and whether a request may run."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["requests", "input_tokens", "output_tokens", "concurrency", "budget_day", "budget_month"]

SOFT_PER_CENT = 80
"""From this part of a limit on its tenant is warned."""


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """One limit as it stands. `remaining` is never negative."""

    kind: Kind
    key_id: str | None
    """Of the key whose own limit it is; None: the tenant's."""
    limit: int
    """Of a rate: what may be taken at once. Of a budget: with what was added to it."""
    remaining: int
    reset_s: float
    """Until all of it is there again, if nothing else is taken."""

    @property
    def is_soft(self) -> bool:
        return 100 * self.remaining <= (100 - SOFT_PER_CENT) * self.limit


class Standing(msgspec.Struct, frozen=True):
    gauges: tuple[Gauge, ...] = ()

    def tightest(self, *kinds: Kind) -> Gauge | None:
        """Of these kinds, the one with the smallest share left."""
        found = [gauge for gauge in self.gauges if gauge.kind in kinds]
        return min(found, key=lambda gauge: gauge.remaining / max(gauge.limit, 1), default=None)


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    max_tokens: int
    """For each answer: as asked, or what the budget pays for."""
    reserved_cost: int
    standing: Standing = Standing()
    """After the takes."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was taken."""

    kind: Kind
    """The limit that refuses; of several the one that is waited for longest."""
    key_id: str | None
    retry_after_s: float | None
    """When it would be granted if nothing else happened; None: waiting does not help."""
    is_never: bool
    """Not even an unused limit would hold it."""
    standing: Standing
