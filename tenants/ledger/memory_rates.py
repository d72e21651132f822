"""The levels of one scope's three rates with one model, as the memory ledger keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tenants.ledger.decision import Tokens
from tenants.ledger.meter import Meter, changed, meters
from tenants.ledger.state import Levels
from tenants.terms import Limits


class Rates(NamedTuple):
    at_us: int = 0
    levels: Levels = (0, 0, 0)
    """At that time."""
    per_min: Levels = (0, 0, 0)
    """By the limits of the last take; a rate without limit keeps what it had."""

    def drained(self, limits: Limits | None, now_us: int) -> Rates:
        """To now, by the limits that hold now; None: by the last ones known."""
        held = (None, None, None) if limits is None else meters(limits)
        rates = _three(now.per_min if now else last for now, last in zip(held, self.per_min, strict=True))
        elapsed_us = now_us - self.at_us
        levels = (
            Meter(rate, 1).level_after(level, elapsed_us)
            for rate, level in zip(rates, self.levels, strict=True)
        )
        return Rates(now_us, _three(levels), rates)

    def taken(self, limits: Limits, tokens: Tokens, now_us: int) -> Rates:
        drained = self.drained(limits, now_us)
        levels = (changed(level, count or 0) for level, count in zip(drained.levels, tokens, strict=True))
        return drained._replace(levels=_three(levels))

    def corrected(self, taken: Tokens, truth: Levels, now_us: int) -> Rates:
        """`truth` in the place of what was taken; nothing was where there was no limit."""
        drained = self.drained(None, now_us)
        levels = (
            level if was is None else changed(level, true - was)
            for level, was, true in zip(drained.levels, taken, truth, strict=True)
        )
        return drained._replace(levels=_three(levels))


def _three(values: Iterable[int]) -> Levels:
    requests, inputs, outputs = values
    return requests, inputs, outputs
