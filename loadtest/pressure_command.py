"""`headrace bench pressure`: its options, and what people see of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from loadtest.figures_table import print_figures
from loadtest.progress import ProgressLine

if TYPE_CHECKING:
    from loadtest.bench_setup import BenchParts
    from loadtest.pressure.load import Case
    from loadtest.pressure.verdict import Tolerance

_MAX_NUM_SEQS = 24
_SHORTEST_CONTEXT = 64
_LONGEST = 4
"""Longest prompt, and longest output: the context ÷ this. Short prompts and long outputs make preemptions."""
_SHOWN_LOSSES = 20
_LABELS = {"answers": "answers, each sibling one", "aborted": "given up, and when", "same": "same as alone"}
_JSON_ONLY = ("apart", "max_apart", "drawn")
"""Say something only to who knows the verdicts; a bound that they miss is told in words."""


@click.command(context_settings={"show_default": True})
@click.option("--model", default="smollm2", help="GGUF file, Hugging Face folder, short name or tape:.")
@click.option("--requests", type=click.IntRange(1, 100_000), default=100, help="30 % of them are given up.")
@click.option("--kv-blocks", type=click.IntRange(16, 1024), default=32, help="Of 16 tokens, in the pool.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    help="In bfloat16 a difference says little: many logits are equal.",
)
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=48, help="Budget of a step.")
@click.option("--deterministic", is_flag=True, help="Reference mode: every answer must be equal, bit by bit.")
@click.option("--seed", type=int, default=0, help="Requests and departures follow from it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def pressure(as_json: bool, **given: Any) -> None:
    """Demand of three pools, clients that leave, then every answer against its solo run.

    Exit status: 0 nothing lost; 1 a block leaked, an answer differs, a request stuck, failed or was
    preempted more than 3 times, or the requests were too few for pressure; 2 could not run.

    Example: headrace bench pressure --model tape: --requests 1000
    """
    from loadtest.bench_setup import CannotBench
    from loadtest.pressure.bench import PressureBench
    from loadtest.pressure.bounds import missed_bounds

    try:
        parts, cases = _prepare(given)
    except CannotBench as error:
        click.echo(f"headrace bench pressure: {error}", err=True)
        sys.exit(2)
    bench = PressureBench(parts, _tolerance(parts, given["deterministic"]), ProgressLine(every_s=5).tell)
    told = {key: given[key] for key in ("model", "deterministic", "seed")}
    figures = {**bench.run(cases), **told, "dtype": parts.dtype}
    for line in (*bench.losses[:_SHOWN_LOSSES], *missed_bounds(figures)):
        click.echo(line, err=True)
    print_figures(
        (_LABELS.get(key, key.replace("_", " ")), _shown(value))
        for key, value in figures.items()
        if key not in _JSON_ONLY
    )
    if as_json:
        click.echo(json.dumps(figures))
    sys.exit(0 if figures["held"] else 1)


def _prepare(given: dict[str, Any]) -> tuple[BenchParts, list[Case]]:
    """A pool so small that it is always short, and a load whose requests all fit into it alone."""
    from dataclasses import replace

    from loadtest.bench_setup import CannotBench, bench_settings, plan_bench
    from loadtest.pressure.load import PressureLoad, make_cases
    from loadtest.pressure.tape import with_own_answers

    plan = plan_bench(
        bench_settings(
            model=given["model"],
            dtype=given["dtype"],
            kv_cache_dtype="auto",
            device="cpu",
            deterministic=given["deterministic"],
            max_num_seqs=_MAX_NUM_SEQS,
            max_num_batched_tokens=given["max_num_batched_tokens"],
        )
    )
    capacity = (given["kv_blocks"] - 1) * plan.config.block_size
    config = replace(
        plan.config, num_blocks=given["kv_blocks"], max_model_len=min(capacity, plan.config.max_model_len)
    )
    if config.max_model_len < _SHORTEST_CONTEXT:
        raise CannotBench(
            f"a context of {config.max_model_len} tokens is too short to press on: give a model or "
            f"--kv-blocks with {_SHORTEST_CONTEXT} or more"
        )
    load = PressureLoad(
        num_requests=given["requests"],
        max_prompt=config.max_model_len // _LONGEST,
        max_output=config.max_model_len // _LONGEST,
        seed=given["seed"],
    )
    cases = make_cases(load, vocab_size=plan.source.config.vocab_size, block_size=config.block_size)
    return replace(plan, config=config, source=with_own_answers(plan.source, cases)).load(), cases


def _tolerance(parts: BenchParts, is_deterministic: bool) -> Tolerance | None:
    from loadtest.pressure.verdict import TOLERANCE

    return None if is_deterministic or parts.source.tape is not None else TOLERANCE[parts.dtype]


def _shown(value: Any) -> str:
    """Of what was given up: how many, each with the moment."""
    if isinstance(value, dict):
        return "\n".join(f"{count} × {moment}" for moment, count in value.items())
    return f"{value}"
