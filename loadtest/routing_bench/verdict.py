"""From the runs of a comparison to its table, and to the bounds that our policy must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.record import OK
from loadtest.summary import share

OURS = "token-load"
"""The policy that is held to the bounds; the others stand beside it."""
AFFINITY = "affinity"

LEAST_OF_IDEAL = 0.9
"""Of the hits of an ideal placement, with load spread evenly over prefixes."""
LEAST_OF_AFFINITY = 0.8
"""Of pure affinity's hits, with most of the load on one prefix."""
MOST_UNEVEN = 1.5
"""Max / mean in flight, with most of the load on one prefix."""

_KEYS = (
    "requests", "rejected", "errors", "hit_rate", "hits_of_ideal", "ttft_p50_ms", "ttft_p99_ms",
    "in_flight_max_over_mean", "achieved_rps", "send_lag_p99_ms", "statuses",
)  # fmt: skip


def row_of(case: str, policy: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the table shows of one `headrace load --json`."""
    return {"case": case, "policy": policy, **{key: summary[key] for key in _KEYS}}


def judge(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each bound that was missed, in words. A bound whose rows are not there is not judged."""
    by_name = {(row["case"], row["policy"]): row for row in rows}
    failures = [
        f"{row['case']}, {row['policy']}: {row['errors']} requests failed: {_counts(row['statuses'])}"
        for row in rows
        if row["errors"]
    ]
    if even := by_name.get(("even", OURS)):
        failures += _below("even: hits of the ideal", even["hits_of_ideal"], LEAST_OF_IDEAL)
    if hot := by_name.get(("hot", OURS)):
        ratio = hot["in_flight_max_over_mean"]
        if ratio is None or ratio > MOST_UNEVEN:
            failures.append(f"hot: max/mean in flight {ratio}, at most {MOST_UNEVEN} is allowed")
        if affinity := by_name.get(("hot", AFFINITY)):
            kept = share(hot["hit_rate"], affinity["hit_rate"])
            failures += _below("hot: hits of pure affinity's", kept, LEAST_OF_AFFINITY)
    return failures


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {status}" for status, count in statuses.items() if status != OK)


def _below(name: str, value: float | None, least: float) -> list[str]:
    if value is not None and value >= least:
        return []
    return [f"{name} {'unknown' if value is None else format(value, '.1%')}, at least {least:.0%} is asked"]
