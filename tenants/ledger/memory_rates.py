"""The levels of one scope's three rates with one model, as the memory ledger keeps them."""

from __future__ import annotations

from typing import NamedTuple

from tenants.ledger.decision import Tokens
from tenants.ledger.meter import Meter, changed, meters
from tenants.ledger.state import Levels
from tenants.terms import Limits


class Rate(NamedTuple):
    """Touched by takes and corrections of its own only."""

    level: int = 0
    per_min: int = 0
    """By the limits of the last take."""
    at_us: int = 0

    def level_at(self, now_us: int, meter: Meter | None = None) -> int:
        """Drained at the rate that holds now; without a limit now, at the last one known."""
        return (meter or Meter(self.per_min, 1)).level_after(self.level, now_us - self.at_us)

    def changed(self, tokens: int, now_us: int, meter: Meter | None = None) -> Rate:
        per_min = meter.per_min if meter else self.per_min
        return Rate(changed(self.level_at(now_us, meter), tokens), per_min, now_us)


class Rates(NamedTuple):
    requests: Rate = Rate()
    input_tokens: Rate = Rate()
    output_tokens: Rate = Rate()

    def levels(self, limits: Limits, now_us: int) -> Levels:
        requests, inputs, outputs = (
            rate.level_at(now_us, meter) for rate, meter in zip(self, meters(limits), strict=True)
        )
        return requests, inputs, outputs

    def taken(self, limits: Limits, tokens: Tokens, now_us: int) -> Rates:
        held = zip(self, tokens, meters(limits), strict=True)
        return Rates(
            *(rate if count is None else rate.changed(count, now_us, meter) for rate, count, meter in held)
        )

    def corrected(self, taken: Tokens, truth: Levels, now_us: int) -> Rates:
        """`truth` in the place of what was taken; nothing was where there was no limit."""
        held = zip(self, taken, truth, strict=True)
        return Rates(*(rate if was is None else rate.changed(true - was, now_us) for rate, was, true in held))
