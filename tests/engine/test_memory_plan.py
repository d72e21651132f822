"""What steps take beside weights and KV: the heaviest ones, what they take, and what was foreseen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.block_pool import NULL_BLOCK
from engine.config import EngineConfig, ModelConfig
from engine.loading.source import resolve_model
from engine.memory_plan import GATHERED_TOKENS, SPLIT, TILE, activation_bytes
from engine.peak_memory import peak_bytes
from engine.step import ScheduledRequest
from engine.torch_executor import TorchExecutor
from engine.warm_up import heaviest_steps
from kernels import cpu, deterministic
from tests.builders_model import tiny_source

MIB = 2**20
CPU = torch.device("cpu")

MEASURED_MIB = [
    ("bfloat16", 8192, 32, 256, False, 50.1),
    ("bfloat16", 8192, 32, 1024, False, 64.6),
    ("bfloat16", 2048, 16, 256, False, 32.0),
    ("bfloat16", 256, 1, 256, False, 7.8),
    ("float32", 8192, 32, 256, False, 70.4),
    ("float32", 8192, 32, 1024, False, 113.7),
    ("float32", 2048, 16, 256, False, 51.7),
    ("float32", 256, 1, 256, False, 14.1),
    ("float32", 8192, 32, 256, True, 116.1),
    ("float32", 2048, 16, 256, True, 102.3),
]
"""SmolLM2-135M on a CPU: dtype, context, requests, budget, whether in reference mode, and what `warm_up`
measured after a small one: the first of a process also counts the code that is read in."""


@cache
def smollm2() -> ModelConfig:
    return resolve_model("smollm2").config


def sizes(**given: Any) -> EngineConfig:
    return EngineConfig(**{"num_blocks": 2900, "max_model_len": 8192} | given)


@pytest.mark.parametrize(
    ("dtype", "context", "num_seqs", "budget", "deterministic", "measured"), MEASURED_MIB
)
def test_the_estimate_covers_what_was_measured_and_not_much_more(
    dtype: str, context: int, num_seqs: int, budget: int, deterministic: bool, measured: float
) -> None:
    engine = sizes(max_model_len=context, max_num_seqs=num_seqs, max_num_batched_tokens=budget)
    estimate = activation_bytes(smollm2(), engine, dtype, dtype, deterministic=deterministic)
    assert measured < estimate / MIB < 3 * measured


def test_every_size_that_costs_memory_counts() -> None:
    model = smollm2()

    def estimate(model: ModelConfig = model, dtype: str = "float32", **given: Any) -> int:
        engine = sizes(**{"max_num_seqs": 8, "max_num_batched_tokens": 256} | given)
        return activation_bytes(model, engine, dtype, "float32")

    base = estimate()
    assert estimate(max_num_seqs=9) - base == model.vocab_size * 44
    assert estimate(max_num_batched_tokens=512) > base
    assert estimate(max_num_batched_tokens=512, max_model_len=256, max_num_seqs=1) == estimate(
        max_model_len=256, max_num_seqs=1
    )
    # A position costs its place in the mask, and K and V for the prefill and for the decodes.
    assert estimate(max_model_len=20_001) - estimate(max_model_len=20_000) == 256 * 5 + 2 * (2 * 3 * 64 * 4)
    assert estimate(replace(model, intermediate_size=2 * model.intermediate_size)) > base
    assert estimate(max_model_len=20_000, dtype="float64") > 2 * estimate(max_model_len=20_000) * 0.9


def test_the_kernels_work_in_the_pieces_that_are_foreseen() -> None:
    assert cpu.GATHER_LIMIT == GATHERED_TOKENS
    assert (deterministic.TILE, deterministic.SPLIT) == (TILE, SPLIT)


def steps_of(engine: EngineConfig) -> tuple[ScheduledRequest, list[ScheduledRequest], ScheduledRequest]:
    """The prefill alone; then the decodes and the prefill of the mixed step."""
    (alone,), (*decodes, beside) = (plan.scheduled for plan in heaviest_steps(engine))
    return alone, decodes, beside


def test_the_heaviest_steps_end_at_the_longest_context_with_a_whole_budget() -> None:
    engine = sizes(num_blocks=4001, max_model_len=10_000, max_num_seqs=8, max_num_batched_tokens=64)
    alone, decodes, beside = steps_of(engine)
    assert (alone.num_computed_tokens, alone.num_scheduled_tokens) == (9936, 64)
    assert (beside.num_computed_tokens, beside.num_scheduled_tokens) == (9943, 57)
    assert [end_of(decode) for decode in decodes] == [10_000, *[64_000 // 8] * 6]
    for request in (alone, *decodes, beside):
        assert set(request.block_table) == {NULL_BLOCK}
        assert len(request.block_table) == -(-end_of(request) // 16)
        assert len(request.history) == end_of(request)
        assert (request.sampling.num_logprobs, request.sampling.has_penalties) == (20, True)


def test_decodes_are_gathered_to_the_full_whatever_the_pool_for_they_may_share_it() -> None:
    _, decodes, _ = steps_of(sizes(num_blocks=65, max_num_seqs=32))
    assert [end_of(decode) for decode in decodes] == [8192, *[GATHERED_TOKENS // 32] * 30]


def test_one_request_at_once_has_no_decode_beside_it() -> None:
    alone, decodes, beside = steps_of(sizes(max_num_seqs=1))
    assert (alone, decodes) == (beside, [])


@given(
    num_blocks=st.integers(2, 10_000),
    max_model_len=st.integers(1, 2000),
    max_num_seqs=st.integers(1, 100),
    spare=st.integers(0, 1000),
)
def test_a_scheduler_could_plan_them(
    num_blocks: int, max_model_len: int, max_num_seqs: int, spare: int
) -> None:
    budget = max_num_seqs + spare
    engine = sizes(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
    )
    for plan in heaviest_steps(engine):
        counts = [request.num_scheduled_tokens for request in plan.scheduled]
        assert min(counts) >= 1
        assert sum(counts) == min(budget, len(counts) - 1 + max_model_len)
        assert all(end_of(request) <= max_model_len for request in plan.scheduled)
    assert [len(plan.scheduled) for plan in heaviest_steps(engine)] == [1, max_num_seqs]


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
    # Not the 256 MiB of all four, nor what `before` holds; the system may take a page back late.
    assert 60 * MIB < peak < 224 * MIB
    assert before.sum() == 16 * MIB
