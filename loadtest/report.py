"""What people see of a run: a line while it goes on, a table at its end."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.loop import LoadLoop
from loadtest.record import OK


def progress_line(loop: LoadLoop) -> str:
    done = len(loop.records)
    failed = sum(not record.is_ok for record in loop.records)
    tokens = sum(record.output_tokens for record in loop.records if record.is_ok)
    rate = tokens / loop.elapsed_s if loop.elapsed_s > 0 else 0.0
    return (
        f"{loop.elapsed_s:6.1f} s   {done} done   {loop.num_running} running   {failed} failed   "
        f"{rate:.1f} output tokens/s"
    )


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """Latencies as a table, then the rates, then every status that is not ok."""
    console.print(_title(summary), highlight=False, soft_wrap=True)
    table = Table("ms", "p50", "p90", "p99")
    for name in ("ttft", "itl", "tpot", "e2e"):
        table.add_row(name.upper(), *(_ms(summary[f"{name}_p{percent}_ms"]) for percent in (50, 90, 99)))
    console.print(table)
    bounds = ", ".join(f"{name} ≤ {bound:g}" for name, bound in summary["slo"].items())
    for line in (
        f"offered {summary['offered_rps']:.2f}/s   achieved {summary['achieved_rps']:.2f}/s   "
        f"goodput {summary['goodput_rps']:.2f}/s at {bounds}",
        f"output {summary['output_tokens_per_s']:.1f} tokens/s   prompt tokens from cache "
        f"{_percent(summary['hit_rate'])}{_of_ideal(summary)}",
        _replicas(summary),
        _lateness(summary),
        _problems(summary),
    ):
        if line:
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _title(summary: dict[str, Any]) -> str:
    return (
        f"{summary['requests']} requests, {'at most ' if summary['loop'] == 'open' else ''}"
        f"{summary['concurrency']} at once, {summary['elapsed_s']:.1f} s"
        + (" (interrupted)" if summary["interrupted"] else "")
    )


def _of_ideal(summary: dict[str, Any]) -> str:
    if summary["hits_of_ideal"] is None:
        return ""
    return f", {_percent(summary['hits_of_ideal'])} of the ideal {_percent(summary['ideal_hit_rate'])}"


def _replicas(summary: dict[str, Any]) -> str:
    """Only where there is a choice between several."""
    replicas = summary["replicas"].values()
    if len(replicas) < 2:
        return ""
    counts = ", ".join(str(one["requests"]) for one in replicas)
    ratio = summary["in_flight_max_over_mean"]
    return (
        f"requests per replica {counts}   in flight max/mean {'-' if ratio is None else format(ratio, '.2f')}"
    )


def _lateness(summary: dict[str, Any]) -> str:
    if summary["loop"] == "closed" or summary["send_lag_p99_ms"] is None:
        return ""
    return (
        f"sent late by {summary['send_lag_p99_ms']:.1f} ms (p99), {summary['send_lag_max_ms']:.1f} ms (most)"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else format(share, ".1%")


def _problems(summary: dict[str, Any]) -> str:
    reasons = summary["reasons"]
    failed = [
        f"{count} × {status}" + (f" ({reasons[status]})" if status in reasons else "")
        for status, count in summary["statuses"].items()
        if status != OK
    ]
    if summary["unfinished"]:
        failed.append(f"{summary['unfinished']} × unfinished")
    return f"not answered in full: {', '.join(failed)}" if failed else ""


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
