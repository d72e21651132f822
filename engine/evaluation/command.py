"""`headrace eval`: what a choice costs a model's answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

_QUANTIZATIONS = ("int8", "int4", "stored")
_UNBROKEN = 300
"""Columns, where no terminal breaks lines."""


@click.group("eval")
def evaluation() -> None:
    """What a choice costs a model's answers.

    Example: headrace eval quant smollm2 --quantization int8
    """


@evaluation.command(context_settings={"show_default": True})
@click.argument("model", default="smollm2")
@click.option(
    "--quantization",
    "quantizations",
    type=click.Choice(_QUANTIZATIONS),
    multiple=True,
    default=("int8", "int4"),
    help="Repeatable.",
)
@click.option("--text", type=click.Path(path_type=Path), help="UTF-8 file; default: a stored one.")
@click.option("--seeds", type=click.IntRange(1), default=3, help="For each temperature.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    help="Of what is not quantised; in bfloat16 a model differs from itself, too.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def quant(quantizations: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Quantised weights against the same model without: perplexity and agreement, each with a bound.

    MODEL is as for `headrace serve`. Draws agree if both models draw the same token behind the same words
    with the same seed; tokens alike are those of a free text before the two part. On a CPU it takes minutes,
    least with one --quantization, --seeds 1 and a short --text.

    Exit status: 0 within the bounds; 1 beyond one; 2 could not run.

    Example: headrace eval quant smollm2 --quantization int8 --quantization int4
    """
    from rich.console import Console

    from engine.evaluation.bounds import BOUNDS, misses
    from engine.evaluation.table import table
    from engine.loading.source import ModelError

    try:
        rows = _compare(quantizations, **given)
    except (ModelError, ValueError) as error:
        click.echo(f"headrace eval quant: {error}", err=True)
        sys.exit(2)
    failures = [miss for row in rows for miss in misses(row, BOUNDS[row["quantization"]])]
    Console(width=None if sys.stdout.isatty() else _UNBROKEN).print(table(rows))
    for failure in failures:
        click.echo(failure)
    if as_json:
        click.echo(json.dumps({"rows": rows, "failures": failures}))
    if failures:
        sys.exit(1)


def _compare(
    quantizations: Any, *, model: str, text: Path | None, seeds: int, dtype: str, device: str
) -> list[dict[str, Any]]:
    import torch

    from engine.evaluation.quant import Plan, compare
    from engine.evaluation.text import read_text
    from engine.kv_memory import usable_context
    from engine.loading.source import resolve_model
    from engine.quantization import check_quantization

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a GPU, and this machine has none")
    source = resolve_model(model)
    if source.tape is not None:
        raise ValueError(f"{model} is a tape: it has no weights")
    for quantization in quantizations:
        check_quantization(quantization, source)
    token_ids = tuple(source.tokenizer().encode(read_text(text)))
    plan = Plan(token_ids, seeds, usable_context(source.config))
    return compare(
        source,
        plan,
        quantizations,
        dtype=dtype,
        device=device,
        tell=lambda stage: click.echo(f"{stage} …", err=True),
    )
