"""From a run's calls to figures, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from loadtest.fleet.curve import Curve
from loadtest.fleet.run import CallRecord, FleetRun
from loadtest.percentiles import percentile, percentiles
from loadtest.record import RequestRecord
from loadtest.slo import Slo
from tenants.service_tokens import service_tokens


def rejected(calls: Iterable[CallRecord]) -> dict[str, int]:
    """Tries that were not answered, by status and reason."""
    statuses = (
        f"{call.record.status} {call.record.reason}".strip() for call in calls if not call.record.is_ok
    )
    return dict(sorted(Counter(statuses).items()))


def ttft_p99_ms(calls: Iterable[CallRecord]) -> float:
    """Of the tries that were answered; 0 if none was."""
    seconds = [call.record.ttft_s for call in calls if call.record.is_ok and call.record.ttft_s is not None]
    return round(1000 * (percentile(seconds, 99) or 0.0), 1)


def ttft_curve(calls: Iterable[CallRecord]) -> Curve:
    """Per cent of the answered tries → the most milliseconds that their first tokens took."""
    percents = [*range(1, 101)]
    seconds = [call.record.ttft_s for call in calls if call.record.is_ok and call.record.ttft_s is not None]
    return Curve(percents, [1000 * (value or 0.0) for value in percentiles(seconds, percents)])


def good_share(calls: Sequence[CallRecord], slo: Slo) -> float:
    """Asks that were answered within the objectives, counted from their first try ÷ all asks."""
    began = {call.ask_number: call.record.sent_at for call in reversed(calls)}
    good = {
        call.ask_number
        for call in calls
        if slo.is_met_by(msgspec.structs.replace(call.record, intended_at=began[call.ask_number]))
    }
    return round(len(good) / len(began), 4) if began else 1.0


def honesty(calls: Iterable[CallRecord]) -> float | None:
    """Of the tries that came when they had been told to, the part that was let in; None: there was none."""
    returned = [call.record for call in calls if call.was_told]
    if not returned:
        return None
    return round(sum(not record.is_rejected for record in returned) / len(returned), 4)


def wait_error_s(run: FleetRun) -> float | None:
    """Median of |predicted − actual| over the waits of a second or more; None: there was none."""
    errors = [abs(one.predicted_s - one.actual_s) for one in run.waits if one.actual_s >= 1.0]
    error = percentile(errors, 50)
    return None if error is None else round(error, 2)


def service(record: RequestRecord) -> float:
    """Tokens of service that it got."""
    uncached = record.prompt_tokens - record.cached_tokens if record.token_times else 0
    cached = record.cached_tokens if record.token_times else 0
    return service_tokens(uncached, cached, record.output_tokens)


def service_by_tenant(calls: Iterable[CallRecord]) -> Mapping[str, float]:
    served: Counter[str] = Counter()
    for call in calls:
        served[call.share.tenant_id] += round(service(call.record))
    return served


def offered_by_tenant(calls: Iterable[CallRecord], begin_s: float, end_s: float) -> Mapping[str, float]:
    """Tokens of service that first tries asked for between these times, as if nothing were cached."""
    offered: Counter[str] = Counter()
    for call in calls:
        if call.tries == 0 and begin_s <= call.record.sent_at < end_s:
            offered[call.share.tenant_id] += call.record.prompt_tokens + call.asked_tokens
    return offered


def hit_rate(calls: Iterable[CallRecord]) -> float:
    """Prompt tokens from the cache ÷ all, of the tries that were answered; 0 if none was."""
    answered = [call.record for call in calls if call.record.is_ok]
    prompt_tokens = sum(record.prompt_tokens for record in answered)
    return round(sum(record.cached_tokens for record in answered) / max(1, prompt_tokens), 4)
