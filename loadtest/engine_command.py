"""`headrace bench engine`: its options, and what people see of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from loadtest.progress import ProgressLine

if TYPE_CHECKING:
    from loadtest.bench_setup import BenchParts

_MAX_CONCURRENCY = 1024
_ENGINE_FIELDS = (
    "model", "dtype", "kv_cache_dtype", "deterministic", "device", "attention_backend", "kv_memory",
    "max_num_batched_tokens", "quantization",
)  # fmt: skip
"""Options that mean what they mean to `headrace serve`."""
MAX_TTFT_STEPS = 2
"""What a short prompt beside long ones may wait, in steps (p99)."""


@click.command(context_settings={"show_default": True})
@click.option("--model", default="smollm2", help="GGUF file, Hugging Face folder, short name or tape:.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, help="Of each request.")
@click.option("--output-tokens", type=click.IntRange(1), default=64, help="Of each request, exactly.")
@click.option(
    "--concurrency", type=click.IntRange(1, _MAX_CONCURRENCY), multiple=True, default=(8,), help="Repeatable."
)
@click.option("--requests", type=click.IntRange(1), help="For each concurrency.  [default: twice it]")
@click.option(
    "--shared-prefix-tokens",
    type=click.IntRange(0),
    default=0,
    help="Same for all prompts; also measures without the cache.",
)
@click.option(
    "--long-prompt", type=click.IntRange(1), help="Tokens of a prompt that is always there beside the others."
)
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto")
@click.option(
    "--quantization",
    type=click.Choice(["none", "int8", "int4", "stored"]),
    default="none",
    help="Of the projections; stored: as in the file.",
)
@click.option("--kv-cache-dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto")
@click.option("--deterministic", is_flag=True, help="Reference mode: the same bits whatever the batch; slow.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option(
    "--attention-backend",
    type=click.Choice(["auto", "triton", "cpu", "reference"]),
    default="auto",
    help="Whose kernels.",
)
@click.option("--kv-memory", default="1G", help="Bytes, or 512M, 1G.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=256, help="Budget of a step.")
@click.option("--seed", type=int, default=0, help="Prompts follow from it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def engine(as_json: bool, **given: Any) -> None:
    """The engine alone: no Ray, no HTTP.

    Exit status: 0 measured; 1 with --long-prompt, if a short one waited more than 2 steps (p99) for its
    first token; 2 could not run.

    Example: headrace bench engine --concurrency 1 --concurrency 8 --json
    """
    from kernels.commands.console import table_console
    from loadtest.bench_run import EngineFailed
    from loadtest.bench_setup import CannotBench
    from loadtest.engine_table import print_rows

    _check_lengths(given)
    try:
        rows = [_measure(given, concurrency) for concurrency in given["concurrency"]]
    except (CannotBench, EngineFailed) as error:
        click.echo(f"headrace bench engine: {error}", err=True)
        sys.exit(2)
    print_rows(rows, table_console())
    if as_json:
        click.echo(json.dumps({**rows[-1], "rows": rows}))
    if any(row.get("short_ttft_steps_p99", 0) > MAX_TTFT_STEPS for row in rows):
        sys.exit(1)


def _check_lengths(given: dict[str, Any]) -> None:
    if given["shared_prefix_tokens"] >= given["prompt_tokens"]:
        raise click.BadParameter("must be below --prompt-tokens", param_hint="--shared-prefix-tokens")
    if given["long_prompt"] is None:
        return
    if given["shared_prefix_tokens"]:
        raise click.BadParameter("goes without --shared-prefix-tokens", param_hint="--long-prompt")
    most = given["max_num_batched_tokens"] // 2
    if given["prompt_tokens"] > most:
        raise click.BadParameter(
            f"must be at most {most} beside --long-prompt: half of --max-num-batched-tokens is what a "
            "short prompt may count on",
            param_hint="--prompt-tokens",
        )


def _measure(given: dict[str, Any], concurrency: int) -> dict[str, Any]:
    """One row, on an engine of its own."""
    from loadtest.bench_setup import CannotBench, bench_settings, plan_bench

    long_prompt = given["long_prompt"]
    num_seqs = min(concurrency + (long_prompt is not None), _MAX_CONCURRENCY)
    engine_fields = {name: given[name] for name in _ENGINE_FIELDS}
    plan = plan_bench(bench_settings(max_num_seqs=num_seqs, **engine_fields))
    if max(given["prompt_tokens"], long_prompt or 0) + given["output_tokens"] > plan.config.max_model_len:
        raise CannotBench(f"prompt and output exceed the context of {plan.config.max_model_len} tokens")
    parts = plan.load(measures_limits=True)
    if long_prompt is None:
        return _closed_loop(parts, given, concurrency)
    return _beside(parts, given, concurrency)


def _closed_loop(parts: BenchParts, given: dict[str, Any], concurrency: int) -> dict[str, Any]:
    from loadtest.bench_engine import BenchLoad

    load = BenchLoad(
        num_requests=given["requests"] or 2 * concurrency,
        concurrency=concurrency,
        prompt_tokens=given["prompt_tokens"],
        output_tokens=given["output_tokens"],
        shared_prefix_tokens=given["shared_prefix_tokens"],
        seed=given["seed"],
    )
    progress = ProgressLine()
    row = parts.bench().run(
        load, lambda done: progress.tell(f"{concurrency} at once: {done} of {load.num_requests} done")
    )
    if not load.shared_prefix_tokens:
        return row
    without = parts.bench(enable_prefix_caching=False).run(
        load, lambda done: progress.tell(f"without the cache: {done} of {load.num_requests} done")
    )
    return {
        **row,
        "uncached_ttft_p50_ms": without["ttft_p50_ms"],
        "uncached_output_tokens_per_s": without["output_tokens_per_s"],
        "cache_gain": round(without["ttft_p50_ms"] / row["ttft_p50_ms"], 2),
    }


def _beside(parts: BenchParts, given: dict[str, Any], concurrency: int) -> dict[str, Any]:
    from loadtest.long_prompt import LongPromptLoad

    load = LongPromptLoad(
        long_prompt_tokens=given["long_prompt"],
        num_requests=given["requests"] or 2 * concurrency,
        concurrency=concurrency,
        prompt_tokens=given["prompt_tokens"],
        output_tokens=given["output_tokens"],
        max_num_batched_tokens=parts.config.max_num_batched_tokens,
        seed=given["seed"],
    )
    progress = ProgressLine()
    return parts.bench().run_beside_long_prompts(
        load, lambda done: progress.tell(f"beside a long prompt: {done} short ones done")
    )
