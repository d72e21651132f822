"""What a step must cost at least, counted by hand on a model small enough for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import ModelConfig, RopeConfig
from engine.request import SamplingParams
from engine.step import ScheduledRequest, StepPlan
from loadtest.limits import MachineLimits, ModelCost, StepCost

MODEL = ModelConfig(
    model_id="m",
    revision="r",
    architecture="llama",
    vocab_size=10,
    hidden_size=4,
    intermediate_size=6,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=2,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10_000.0),
    max_model_len=100,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(),
)
HEAD = 10 * 4
LAYER = 2 * 4 + 4 * 4 + 2 * (2 * 4) + 4 * 4 + 3 * 4 * 6  # norms, q, k and v, o, three of the MLP
LAYERS = 2 * LAYER + 4  # and the last norm
KV = 2 * 2 * 1 * 2  # values a token: K and V of two layers, one head of 2
PAIR = 4 * 2 * 2 * 2  # FLOPs of one query with one key


def a_plan(*rows: tuple[int, int, bool]) -> StepPlan:
    """Rows are (tokens before, tokens of the step, whether one is sampled)."""
    return StepPlan(
        1,
        tuple(
            ScheduledRequest(
                "r", (0,) * count, before, (), 0 if sampled else None, SamplingParams(max_tokens=1)
            )
            for before, count, sampled in rows
        ),
    )


def cost(*rows: tuple[int, int, bool], model: ModelConfig = MODEL) -> StepCost:
    return ModelCost(model, value_bytes=2, kv_value_bytes=4).of(a_plan(*rows))


def test_a_decode_reads_all_weights_its_context_and_writes_one_token() -> None:
    assert cost((7, 1, True)) == StepCost(
        num_bytes=2 * (LAYERS + HEAD) + 4 * KV * (8 + 1), num_flops=2 * (LAYERS + HEAD) + PAIR * 8
    )


def test_weights_are_read_once_for_all_rows() -> None:
    one, three = cost((7, 1, True)), cost((7, 1, True), (7, 1, True), (7, 1, True))
    assert three.num_bytes - one.num_bytes == 2 * 4 * KV * (8 + 1)
    assert three.num_flops == 3 * one.num_flops


def test_a_chunk_that_samples_nothing_leaves_the_output_layer_alone() -> None:
    """Its 3 queries see 5, 6 and 7 keys."""
    assert cost((4, 3, False)) == StepCost(
        num_bytes=2 * LAYERS + 4 * KV * (7 + 3), num_flops=2 * LAYERS * 3 + PAIR * (5 + 6 + 7)
    )


def test_an_embedding_of_its_own_is_a_look_up_and_costs_nothing() -> None:
    untied = replace(MODEL, tie_word_embeddings=False)
    assert cost((7, 1, True), model=untied) == cost((7, 1, True))


def test_a_step_without_work_costs_nothing() -> None:
    assert cost() == StepCost(0, 0)


@pytest.mark.parametrize(
    ("num_bytes", "num_flops", "least_s"), [(300, 100, 3.0), (100, 500, 2.5), (0, 0, 0.0)]
)
def test_the_longer_of_moving_and_computing_is_the_least(
    num_bytes: int, num_flops: int, least_s: float
) -> None:
    limits = MachineLimits(bytes_per_s=100, flops_per_s=200)
    assert StepCost(num_bytes, num_flops).least_s(limits) == least_s
