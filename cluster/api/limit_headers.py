"""How a tenant stands, in response headers: OpenAI's `x-ratelimit-*`, and a warning before a limit is met."""

from __future__ import annotations

from math import ceil

from tenants.ledger.grant import Gauge, Standing


def limit_headers(standing: Standing) -> dict[str, str]:
    """`tokens` is whichever of input and output is closer to its limit; what has no limit has no headers."""
    headers: dict[str, str] = {}
    _tell(headers, "requests", standing.tightest("requests"))
    _tell(headers, "tokens", standing.tightest("input_tokens", "output_tokens"))
    if soft := sorted({gauge.kind for gauge in standing.gauges if gauge.is_soft}):
        headers["x-headrace-soft-limits"] = ",".join(soft)
    return headers


def _tell(headers: dict[str, str], name: str, gauge: Gauge | None) -> None:
    if gauge is None:
        return
    headers[f"x-ratelimit-limit-{name}"] = str(gauge.limit)
    headers[f"x-ratelimit-remaining-{name}"] = str(gauge.remaining)
    headers[f"x-ratelimit-reset-{name}"] = duration(gauge.reset_s)


def duration(seconds: float) -> str:
    """As OpenAI writes it: `0s`, `20ms`, `1.5s`, `6m0s`, `1h2m3s`. Rounded up to the millisecond."""
    milliseconds = ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    shown = f"{hours}h" if hours else ""
    shown += f"{minutes}m" if hours or minutes else ""
    return f"{shown}{rest / 1000:g}s"
