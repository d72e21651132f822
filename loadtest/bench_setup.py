"""Puts an engine together for a bench, with the same pieces as a replica's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from cluster.preflight import check_memory, open_model, plan_engine
from cluster.serve_command import explain
from cluster.settings import ServeSettings
from cluster.stages import StartError
from engine.block_hash import model_root
from engine.build import build_executor
from engine.config import BackendName, EngineConfig
from engine.core import EngineCore
from engine.dtype import DTYPE_BYTES
from engine.executor import Executor
from engine.loading.source import ModelError, ModelSource
from engine.policy import FirstComeFirstServed
from engine.quantization import Quantization
from engine.scheduler import Scheduler
from engine.step import StepPlan
from loadtest.bench_engine import EngineBench
from loadtest.bench_requests import RequestMaker
from loadtest.bench_run import BenchRun
from loadtest.limits import MachineLimits, ModelCost
from loadtest.watched_executor import WatchedExecutor


class CannotBench(Exception):
    """One line that says why, and the remedy."""


@dataclass(frozen=True)
class BenchParts:
    """A loaded model and the sizes of the engines that are made around it, one after the other."""

    source: ModelSource
    config: EngineConfig
    dtype: str
    kv_dtype: str
    executor: Executor
    limits: MachineLimits | None = None
    """None of a tape, and where they were not measured."""
    quantization: Quantization = "none"

    def bench(self, *, enable_prefix_caching: bool = True) -> EngineBench:
        """On an empty pool."""
        config = replace(self.config, enable_prefix_caching=enable_prefix_caching)
        watched = WatchedExecutor(self.executor)
        core = self.core(config, watched)
        token_bytes = self.source.tokenizer().token_bytes
        model = self.source.config
        root = model_root(model, kv_dtype=self.kv_dtype, quantization=self.quantization)
        return EngineBench(
            lambda: BenchRun(core, watched, token_bytes, time.monotonic, self._least_s_of()),
            lambda seed: RequestMaker(model.vocab_size, root, config.block_size, seed),
        )

    def core(self, config: EngineConfig, executor: Executor) -> EngineCore:
        scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=self.source.config.eos_token_ids)
        return EngineCore(scheduler, executor, time.monotonic)

    def _least_s_of(self) -> Callable[[StepPlan], float] | None:
        if (limits := self.limits) is None:
            return None
        cost = ModelCost(
            self.source.config,
            value_bytes=DTYPE_BYTES[self.dtype],
            kv_value_bytes=DTYPE_BYTES[self.kv_dtype],
        )
        return lambda plan: cost.of(plan).least_s(limits)


@dataclass(frozen=True)
class BenchPlan:
    """All that is decided before weights are read."""

    source: ModelSource
    config: EngineConfig
    dtype: str
    kv_dtype: str
    device: str
    backend: BackendName
    deterministic: bool
    quantization: Quantization

    def load(self, *, measures_limits: bool = False) -> BenchParts:
        """Loads the model and warms it up. Raises `CannotBench`.

        The machine is measured first: memory that it takes then is free again for the model.
        """
        limits = None
        if measures_limits and self.source.tape is None:  # a tape asks nothing of the machine
            from loadtest.machine_probe import probe_machine

            limits = probe_machine(self.dtype, self.device)
        try:
            executor = build_executor(
                self.source,
                self.config,
                dtype=self.dtype,
                device=self.device,
                kv_dtype=self.kv_dtype,
                deterministic=self.deterministic,
                backend=self.backend,
                quantization=self.quantization,
            )
        except ModelError as error:
            raise CannotBench(str(error)) from None
        return BenchParts(
            self.source, self.config, self.dtype, self.kv_dtype, executor, limits, self.quantization
        )


def bench_settings(*, max_num_seqs: int, max_num_batched_tokens: int, **fields: Any) -> ServeSettings:
    """The settings of `headrace serve` that a bench is about; the budget has room for every seat.

    Raises `CannotBench`, which names the flag.
    """
    fields["max_num_seqs"] = max_num_seqs
    fields["max_num_batched_tokens"] = max(max_num_batched_tokens, max_num_seqs)
    try:
        return ServeSettings(**fields)
    except ValidationError as error:
        raise CannotBench("; ".join(explain(error, fields))) from None


def plan_bench(settings: ServeSettings) -> BenchPlan:
    """Finds the model and sizes the engine. Raises `CannotBench`."""
    try:
        source = open_model(settings)
        engine = plan_engine(settings, source)
        check_memory(settings, source, engine, beside_bytes=0)
    except StartError as error:
        raise CannotBench(f"{error.message}; {error.remedy}") from None
    if settings.device == "cuda" and not _has_gpu():
        raise CannotBench("--device cuda needs a GPU, and this machine has none")
    return BenchPlan(
        source,
        engine.config,
        engine.dtype,
        engine.kv_dtype,
        settings.device,
        settings.attention_backend,
        settings.deterministic,
        settings.quantization,
    )


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
