"""What people see of `headrace bench engine`: a table, and a line for what does not fit into it."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

_COLUMNS = {
    "concurrency": "users",
    "output_tokens_per_s": "tok/s",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p99_ms": "p99",
    "itl_p50_ms": "ITL p50",
    "itl_p99_ms": "p99",
    "kv_waste": "waste",
    "hit_rate": "hits",
    "limit_share": "limit",
    "overhead_share": "overhead",
    "peak_rss_mib": "MiB",
}
_SHARES = ("kv_waste", "hit_rate", "limit_share", "overhead_share")


def print_rows(rows: list[dict[str, Any]], console: Console) -> None:
    """Narrow enough for 80 columns: a figure that is cut short is worse than none."""
    table = Table(box=SIMPLE, padding=0, title="output tokens/s; times in ms", title_justify="left")
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(_shown(key, row[key]) for key in _COLUMNS))
    console.print(table)
    for row in rows:
        for line in _remarks(row):
            console.print(line, highlight=False, soft_wrap=True)


def _remarks(row: dict[str, Any]) -> list[str]:
    remarks = []
    if "cache_gain" in row:
        remarks.append(
            f"{row['concurrency']} at once: TTFT p50 {row['uncached_ttft_p50_ms']:.1f} ms without the cache, "
            f"{row['ttft_p50_ms']:.1f} ms with it: × {row['cache_gain']:.2f}"
        )
    if "short_ttft_steps_p99" in row:
        remarks.append(
            f"{row['concurrency']} at once beside a prompt of {row['long_prompt_tokens']} tokens: "
            f"first token after {row['short_ttft_steps_p50']} (p50), {row['short_ttft_steps_p99']} (p99), "
            f"{row['short_ttft_steps_max']} (max) steps"
        )
    return remarks


def _shown(key: str, value: float | int | None) -> str:
    if value is None:
        return "-"
    if key in _SHARES:
        return f"{value:.1%}"
    if key == "peak_rss_mib":
        return f"{value:.0f}"
    return f"{value:.1f}" if isinstance(value, float) else f"{value}"
