"""What steps take beside weights and KV: the heaviest ones, what they take, and what was foreseen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, ModelConfig
from engine.loading.source import resolve_model
from engine.memory_plan import GATHERED_TOKENS, activation_bytes
from engine.peak_memory import peak_bytes
from engine.step import ScheduledRequest
from engine.torch_executor import TorchExecutor
from engine.warm_up import heaviest_steps
from kernels import cpu
from tests.builders_model import tiny_source

MIB = 2**20
CPU = torch.device("cpu")

MEASURED_MIB = [
    ("bfloat16", 8192, 32, 256, 68.5),
    ("bfloat16", 8192, 32, 1024, 66.5),
    ("bfloat16", 2048, 16, 256, 34.3),
    ("bfloat16", 256, 1, 256, 7.2),
    ("float32", 8192, 32, 256, 64.5),
    ("float32", 8192, 32, 1024, 90.3),
    ("float32", 2048, 16, 256, 51.5),
    ("float32", 256, 1, 256, 12.6),
    ("float32", 8192, 32, 256, 85.7),
    ("float32", 2048, 16, 256, 54.4),
]
"""SmolLM2-135M on a CPU: dtype, context, requests, budget, and what `warm_up` measured; the last two
in reference mode."""


def sizes(**given: Any) -> EngineConfig:
    return EngineConfig(**{"num_blocks": 2900, "max_model_len": 8192} | given)


@pytest.mark.parametrize(("dtype", "context", "num_seqs", "budget", "measured"), MEASURED_MIB)
def test_the_estimate_covers_what_was_measured_and_not_much_more(
    dtype: str, context: int, num_seqs: int, budget: int, measured: float
) -> None:
    engine = sizes(max_model_len=context, max_num_seqs=num_seqs, max_num_batched_tokens=budget)
    estimate = activation_bytes(resolve_model("smollm2").config, engine, dtype, dtype) / MIB
    assert measured < estimate < 3 * measured


def test_every_size_that_costs_memory_counts() -> None:
    model = resolve_model("smollm2").config

    def estimate(model: ModelConfig = model, dtype: str = "float32", **given: Any) -> int:
        engine = sizes(**{"max_num_seqs": 8, "max_num_batched_tokens": 256} | given)
        return activation_bytes(model, engine, dtype, "float32")

    base = estimate()
    assert estimate(max_num_seqs=9) - base == model.vocab_size * 44
    assert estimate(max_num_batched_tokens=512) > base
    assert estimate(max_num_batched_tokens=512, max_model_len=256, max_num_seqs=1) == estimate(
        max_model_len=256, max_num_seqs=1
    )
    assert estimate(max_model_len=20_000) > base
    assert estimate(replace(model, intermediate_size=2 * model.intermediate_size)) > base
    assert estimate(max_model_len=20_000, dtype="float64") > 2 * estimate(max_model_len=20_000) * 0.9


def test_the_kernel_gathers_no_more_than_is_foreseen() -> None:
    assert cpu.GATHER_LIMIT == GATHERED_TOKENS


def test_the_heaviest_steps_end_at_the_longest_context_and_at_the_full_batch() -> None:
    engine = sizes(num_blocks=65, max_model_len=1000, max_num_seqs=8, max_num_batched_tokens=64)
    (prefill,), decodes = (plan.scheduled for plan in heaviest_steps(engine))
    assert (prefill.num_computed_tokens, prefill.num_scheduled_tokens) == (936, 64)
    assert len(decodes) == 8
    assert sum(end_of(decode) for decode in decodes) == 64 * 16
    for request in (prefill, *decodes):
        assert set(request.block_table) == {0}
        assert len(request.block_table) == -(-end_of(request) // 16)
        assert len(request.history) == end_of(request)
        assert (request.sampling.num_logprobs, request.sampling.has_penalties) == (20, True)


def test_they_fit_a_context_shorter_than_the_budget_and_a_pool_smaller_than_the_batch() -> None:
    engine = sizes(num_blocks=2, max_model_len=9, max_num_seqs=32, max_num_batched_tokens=64)
    (prefill,), decodes = (plan.scheduled for plan in heaviest_steps(engine))
    assert (prefill.num_computed_tokens, prefill.num_scheduled_tokens) == (0, 9)
    assert {end_of(decode) for decode in decodes} == {1}


def end_of(request: ScheduledRequest) -> int:
    return request.num_computed_tokens + request.num_scheduled_tokens


@pytest.mark.parametrize("is_deterministic", [False, True], ids=["cpu path", "reference mode"])
def test_warming_up_leaves_an_empty_cache(is_deterministic: bool) -> None:
    executor = TorchExecutor(
        tiny_source(), device="cpu", dtype="float32", deterministic=is_deterministic, num_threads=1
    )
    executor.allocate_kv(20)
    executor.warm_up(sizes(num_blocks=20, max_model_len=300))
    assert all(not cache.any() for layer in executor._kv.layers for cache in layer)


def test_the_peak_is_what_was_held_at_once_and_not_what_was_held_before() -> None:
    def work() -> None:
        for _ in range(4):
            torch.ones(64 * MIB // 4)

    before = torch.ones(64 * MIB // 4)
    peak = peak_bytes(work, CPU)
    if peak is None:
        pytest.skip("this system does not tell")
    assert 60 * MIB < peak < 100 * MIB
    assert before.sum() == 16 * MIB
