"""From records to figures, and nothing else: the same records give the same figures.

Times are in milliseconds, rates a second of the whole run. Latencies are those of complete answers;
everything else is counted by its status, with the first reason that a server gave for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from loadtest.percentiles import percentiles
from loadtest.record import RequestRecord, Run
from loadtest.slo import Slo

_PERCENTS = (50, 90, 99)


def summarize(run: Run, slo: Slo) -> dict[str, Any]:
    """The figures of the run, as `--json` prints them; `per_tenant` holds the same for each tenant."""
    tenants = sorted({record.tenant for record in run.records})
    return {
        **_figures(run.records, run.elapsed_s, slo),
        "slo": slo.bounds,
        "concurrency": run.concurrency,
        "elapsed_s": round(run.elapsed_s, 3),
        "unfinished": run.num_unfinished,
        "interrupted": run.is_interrupted,
        "per_tenant": {
            tenant: _figures([one for one in run.records if one.tenant == tenant], run.elapsed_s, slo)
            for tenant in tenants
        },
    }


def _figures(records: Sequence[RequestRecord], elapsed_s: float, slo: Slo) -> dict[str, Any]:
    complete = [record for record in records if record.is_ok]
    rejected = sum(record.is_rejected for record in records)
    prompt_tokens = sum(record.prompt_tokens for record in complete)
    output_tokens = sum(record.output_tokens for record in complete)
    cached_tokens = sum(record.cached_tokens for record in complete)
    return {
        "requests": len(records),
        "offered_rps": _rate(len(records), elapsed_s),
        "achieved_rps": _rate(len(complete), elapsed_s),
        "goodput_rps": _rate(sum(map(slo.is_met_by, records)), elapsed_s),
        "rejected": rejected,
        "errors": len(records) - len(complete) - rejected,
        "statuses": dict(sorted(Counter(record.status for record in records).items())),
        "reasons": {record.status: record.reason for record in reversed(records) if record.reason},
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": _rate(output_tokens, elapsed_s),
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
        f"{name}_p{percent}_ms": None if value is None else round(value * 1000, 3)
        for name, seconds in measured.items()
        for percent, value in zip(_PERCENTS, percentiles(seconds, _PERCENTS), strict=True)
    }


def _rate(count: int, elapsed_s: float) -> float:
    return round(count / elapsed_s, 3) if elapsed_s > 0 else 0.0
