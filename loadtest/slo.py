"""Service level objectives: bounds that a request meets, all of them, or not."""

from __future__ import annotations

from typing import NamedTuple

from loadtest.record import RequestRecord

_NAMES = ("ttft_ms", "tpot_ms", "e2e_ms")


class Slo(NamedTuple):
    """Upper bounds in milliseconds; None bounds nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        """Those that are set, by name."""
        return {name: bound for name, bound in self._asdict().items() if bound is not None}

    def is_met_by(self, record: RequestRecord) -> bool:
        """A failed request meets nothing. An answer of one token has no TPOT and meets any."""
        if not record.is_ok:
            return False
        measured = (
            (record.ttft_s, self.ttft_ms),
            (record.tpot_s, self.tpot_ms),
            (record.e2e_s, self.e2e_ms),
        )
        return all(seconds is None or bound is None or seconds * 1000 <= bound for seconds, bound in measured)

    def __str__(self) -> str:
        return ",".join(f"{name}={bound:g}" for name, bound in self.bounds.items())


def parse_slo(text: str) -> Slo:
    """From `ttft_ms=1000,tpot_ms=100`. Raises ValueError naming the part that is wrong."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in _NAMES:
            raise ValueError(f"{part.strip()!r} does not begin with one of {', '.join(_NAMES)}")
        try:
            bounds[name] = float(value)
        except ValueError:
            raise ValueError(f"{name} must be a number of milliseconds, not {value!r}") from None
        if not 0 < bounds[name] < float("inf"):
            raise ValueError(f"{name} must be above 0, not {value}")
    return Slo(**bounds)
