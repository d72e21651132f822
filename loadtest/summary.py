"""From records to figures, and nothing else: the same records give the same figures.

Times are in milliseconds, rates a second of the whole run. Latencies are those of complete answers;
everything else is counted by its status, with the first reason that a server gave for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from loadtest.in_flight import replica_figures
from loadtest.percentiles import percentiles
from loadtest.record import LoadRun, RequestRecord
from loadtest.slo import Slo

_PERCENTS = (50, 90, 99)


def summarize(run: LoadRun, slo: Slo, ideal_hit_rate: float | None = None) -> dict[str, Any]:
    """The figures of the run, as `--json` prints them; `per_tenant` holds the same for each tenant.

    `ideal_hit_rate` is what caches could have reached at most.
    """
    tenants = sorted({record.tenant for record in run.records})
    figures = _figures(run.records, run, slo)
    return {
        **figures,
        "ideal_hit_rate": None if ideal_hit_rate is None else round(ideal_hit_rate, 4),
        "hits_of_ideal": share(figures["hit_rate"], ideal_hit_rate),
        **replica_figures(run.records),
        **_send_lag(run.records),
        "slo": slo.bounds,
        "loop": "closed" if run.offered_s is None else "open",
        "concurrency": run.concurrency,
        "elapsed_s": round(run.elapsed_s, 3),
        "unfinished": run.num_unfinished,
        "interrupted": run.is_interrupted,
        "per_tenant": {
            tenant: _figures([one for one in run.records if one.tenant == tenant], run, slo)
            for tenant in tenants
        },
    }


def _figures(records: Sequence[RequestRecord], run: LoadRun, slo: Slo) -> dict[str, Any]:
    elapsed_s = run.elapsed_s
    complete = [record for record in records if record.is_ok]
    rejected = sum(record.is_rejected for record in records)
    prompt_tokens = sum(record.prompt_tokens for record in complete)
    output_tokens = sum(record.output_tokens for record in complete)
    cached_tokens = sum(record.cached_tokens for record in complete)
    return {
        "requests": len(records),
        "offered_rps": _rate(len(records), elapsed_s if run.offered_s is None else run.offered_s),
        "achieved_rps": _rate(len(complete), elapsed_s),
        "goodput_rps": _rate(sum(map(slo.is_met_by, records)), elapsed_s),
        "rejected": rejected,
        "errors": len(records) - len(complete) - rejected,
        "statuses": dict(sorted(Counter(record.status for record in records).items())),
        "reasons": {record.status: record.reason for record in reversed(records) if record.reason},
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": _rate(output_tokens, elapsed_s),
        "cached_tokens": cached_tokens,
        "hit_rate": round(cached_tokens / prompt_tokens, 4) if prompt_tokens else None,
        **_latencies(complete),
    }


def _latencies(complete: Sequence[RequestRecord]) -> dict[str, float | None]:
    measured = {
        "ttft": [record.ttft_s for record in complete if record.ttft_s is not None],
        "itl": [gap for record in complete for gap in record.itl_s],
        "tpot": [record.tpot_s for record in complete if record.tpot_s is not None],
        "e2e": [record.e2e_s for record in complete],
    }
    return {
        f"{name}_p{percent}_ms": _ms(value)
        for name, seconds in measured.items()
        for percent, value in zip(_PERCENTS, percentiles(seconds, _PERCENTS), strict=True)
    }


def _send_lag(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    lags = [record.send_lag_s for record in records]
    p99, most = percentiles(lags, (99, 100))
    return {"send_lag_p99_ms": _ms(p99), "send_lag_max_ms": _ms(most)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def share(value: float | None, whole: float | None) -> float | None:
    """None if either is unknown, or there is no whole."""
    return None if value is None or not whole else round(value / whole, 4)


def _rate(count: int, elapsed_s: float) -> float:
    return round(count / elapsed_s, 3) if elapsed_s > 0 else 0.0
