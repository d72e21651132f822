"""An evaluation's rows, for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def table(rows: list[dict[str, Any]]) -> Table:
    """A line for each precision and temperature; spreads are mean (least–most) over seeds."""
    shown = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("weights", "perplexity", "ratio", "greedy", "temp.", "draws agree", "tokens alike"):
        shown.add_column(column, no_wrap=True)
    for row in rows:
        figures = (
            row["quantization"],
            f"{row['perplexity']:.2f}",
            f"{row['perplexity_ratio']:.3f}",
            f"{row['greedy_agreement']:.3f}",
        )
        for number, told in enumerate(row["sampled"]):
            shown.add_row(
                *(figure if number == 0 else "" for figure in figures),
                str(told["temperature"]),
                _spread(told["agreement"]),
                _spread(told["first_difference"]),
            )
    return shown


def _spread(told: dict[str, float]) -> str:
    mean, least, most = told["mean"], told["least"], told["most"]
    return f"{mean:.2f}" if least == most else f"{mean:.2f} ({least:.2f}–{most:.2f})"
