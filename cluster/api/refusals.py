"""What a client reads when a limit refuses its request."""

from __future__ import annotations

from cluster.api.errors import ApiError
from cluster.api.limit_headers import limit_headers
from tenants.ledger.grant import Gauge, Kind, Refused, Standing

_NAMES: dict[Kind, str] = {
    "requests": "requests per minute",
    "input_tokens": "input tokens per minute",
    "output_tokens": "output tokens per minute",
    "concurrency": "requests at once",
    "budget_day": "budget of the day",
    "budget_month": "budget of the month",
}


def refusal(refused: Refused) -> ApiError:
    """400 if no waiting helps, 402 if money does, 429 with `Retry-After` if time does."""
    name, whose = _NAMES[refused.kind], "this key" if refused.key_id else "this tenant"
    gauge, headers = _gauge(refused), limit_headers(refused.standing)
    if refused.is_never:
        most = "" if gauge is None else f", {gauge.limit}"
        message = f"This request is larger than what {whose} may ever take at once of its {name}{most}."
        return ApiError(400, "limit_never_satisfiable", message, headers=headers)
    if refused.kind in ("budget_day", "budget_month"):
        message = f"The {name} of {whose} does not pay for this request."
        return ApiError(402, "insufficient_quota", message, headers=headers)
    if refused.kind == "concurrency":
        most = "" if gauge is None else f", {gauge.limit}"
        message = f"{whose.capitalize()} has as many requests at once as it may{most}."
    else:
        left = "" if gauge is None else f": of at most {gauge.limit} at once, {gauge.remaining} are left"
        message = f"{whose.capitalize()} has too little left of its {name} just now{left}."
    code = "concurrency_limit_exceeded" if refused.kind == "concurrency" else "rate_limit_exceeded"
    return ApiError(429, code, message, retry_after_s=refused.retry_after_s, headers=headers)


def unpaid(standing: Standing) -> Refused:
    """Of a request that the budget does not pay for as long as it has to be."""
    budget = standing.tightest("budget_day", "budget_month")
    assert budget is not None
    return Refused(
        kind=budget.kind, key_id=budget.key_id, retry_after_s=None, is_never=False, standing=standing
    )


def _gauge(refused: Refused) -> Gauge | None:
    """Of the limit that refuses. Of a rate it says what may be taken at once, which is not the rate."""
    same = (refused.kind, refused.key_id)
    return next((gauge for gauge in refused.standing.gauges if (gauge.kind, gauge.key_id) == same), None)
