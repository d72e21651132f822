"""Puts an engine together for a bench, with the same pieces as a replica's."""

from __future__ import annotations

import time
from typing import Any

from pydantic import ValidationError

from cluster.preflight import check_memory, open_model, plan_engine
from cluster.serve_command import explain
from cluster.settings import ServeSettings
from cluster.stages import StartError
from engine.build import build_executor
from engine.core import EngineCore
from engine.loading.source import ModelError
from engine.policy import FirstComeFirstServed
from engine.scheduler import Scheduler
from loadtest.bench_engine import EngineBench, TimedExecutor


class CannotBench(Exception):
    """One line that says why, and the remedy."""


def build_bench(given: dict[str, Any], max_num_seqs: int) -> EngineBench:
    """Loads the model and warms it up. Raises `CannotBench`."""
    try:
        settings = ServeSettings(
            model=given["model"],
            dtype=given["dtype"],
            device=given["device"],
            kv_memory=given["kv_memory"],
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(given["max_num_batched_tokens"], max_num_seqs),
        )
        source = open_model(settings)
        config, dtype, _ = plan_engine(settings, source)
        check_memory(settings, source, dtype, beside_bytes=0)
    except StartError as error:
        raise CannotBench(f"{error.message}; {error.remedy}") from None
    except ValidationError as error:
        raise CannotBench("; ".join(explain(error))) from None
    if given["prompt_tokens"] + given["output_tokens"] > config.max_model_len:
        raise CannotBench(f"prompt and output exceed the context of {config.max_model_len} tokens")
    try:
        executor = build_executor(source, config, dtype=dtype, device=settings.device)
    except ModelError as error:
        raise CannotBench(str(error)) from None
    timed = TimedExecutor(executor, time.perf_counter)
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=source.config.eos_token_ids)
    core = EngineCore(scheduler, timed, time.monotonic)
    return EngineBench(core, timed, source.config, source.tokenizer().token_bytes, config.block_size)
