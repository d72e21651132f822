"""The engine on our Triton kernels, interpreted: the same tokens as on the CPU path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.attention_backend import CpuBackend, ReferenceBackend, attention_backend, kv_shape
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.cuda_graphs import Work
from engine.request import Request
from engine.sampler import Draw, SampledRow, sample
from engine.torch_executor import TorchExecutor
from kernels.quant_layout import quantize_int4
from tests.builders import make_request
from tests.builders_model import answers, make_torch_core, tiny_source
from tests.builders_sampler import row
from tests.engine.equality import Answer, Outcome, mixed_requests, outcomes

if "TRITON_INTERPRET" not in os.environ:
    assert "triton" not in sys.modules, "Triton was imported before it could be told to interpret"
    os.environ["TRITON_INTERPRET"] = "1"

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
VOCAB_SIZE = tiny_source().config.vocab_size

WAYS: dict[str, dict[str, Any]] = {
    "decodes beside chunks": {"max_num_seqs": 8, "max_num_batched_tokens": 24},
    "whole prompts": {"max_num_seqs": 4, "max_num_batched_tokens": 200, "enable_prefix_caching": False},
    "preempted": {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 14},
}


@pytest.fixture(autouse=True)
def _as_silent_as_a_gpu() -> Iterator[None]:
    """The interpreter is numpy, which warns of NaN and infinity."""
    with np.errstate(all="ignore"):
        yield


def make_executor(backend: Any, **choices: Any) -> TorchExecutor:
    return TorchExecutor(
        tiny_source(), device="cpu", dtype="float32", num_threads=1, backend=backend, **choices
    )


@pytest.fixture(scope="module")
def on_cpu() -> TorchExecutor:
    return make_executor("cpu")


@pytest.fixture(scope="module")
def on_triton() -> TorchExecutor:
    return make_executor("triton")


def make_core(executor: TorchExecutor, **sizes: Any) -> EngineCore:
    return make_torch_core(tiny_source(), dtype="float32", executor=executor, **sizes)


def run(
    executor: TorchExecutor, requests: list[Request], way: str
) -> tuple[EngineCore, dict[Answer, Outcome]]:
    core = make_core(executor, **WAYS[way])
    return core, outcomes(core, requests, arrivals=Random(way))


def tokens(got: dict[Answer, Outcome]) -> dict[Answer, Any]:
    """What may not differ at all; logprobs may, by roundings of float32."""
    return {answer: (one.token_ids, one.finish_reason, one.error_code) for answer, one in got.items()}


def logprobs(got: dict[Answer, Outcome]) -> list[float]:
    return [told.logprob for one in got.values() for told in one.logprobs or ()]


def check(on_cpu: TorchExecutor, on_triton: TorchExecutor, requests: list[Request], way: str) -> EngineCore:
    _, expected = run(on_cpu, requests, way)
    core, got = run(on_triton, requests, way)
    assert tokens(got) == tokens(expected)
    assert logprobs(got) == pytest.approx(logprobs(expected), abs=1e-4)
    return core


def few_requests() -> list[Request]:
    """Greedy, drawn, penalised, with logprobs, biased: short ones, for interpreting takes long."""
    requests = mixed_requests(60, seed=5, vocab_size=VOCAB_SIZE, max_tokens=3)
    short = [r for r in requests if len(r.prompt_token_ids) <= 12]
    return [cut(next(r for r in short if int(r.request_id[1:]) % 5 == kind)) for kind in range(5)]


def cut(request: Request, **sampling: Any) -> Request:
    return msgspec.structs.replace(
        request, n=1, sampling=msgspec.structs.replace(request.sampling, **sampling)
    )


def test_tokens_are_the_cpu_path_s(on_cpu: TorchExecutor, on_triton: TorchExecutor) -> None:
    check(on_cpu, on_triton, few_requests(), "decodes beside chunks")


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_thirty_requests_have_the_cpu_path_s_tokens(
    on_cpu: TorchExecutor, on_triton: TorchExecutor, way: str
) -> None:
    requests = mixed_requests(30, seed=3, vocab_size=VOCAB_SIZE)
    counters = check(on_cpu, on_triton, requests, way).counters()
    assert counters.preemptions_total > 0 or way != "preempted"
    assert counters.prefix_hits_tokens_total > 0 or way == "whole prompts"


def test_a_prompt_in_chunks_and_again_from_the_cache(on_cpu: TorchExecutor, on_triton: TorchExecutor) -> None:
    prompt = tuple(range(20, 42))
    asked = make_request("r", prompt, max_tokens=2, ignore_eos=True, block_size=16)
    sizes = {"max_num_seqs": 2, "max_num_batched_tokens": 10}
    core, cpu_core = make_core(on_triton, **sizes), make_core(on_cpu, **sizes)
    expected = answers(cpu_core, [asked])
    assert answers(core, [asked]) == expected
    assert answers(core, [asked]) == expected
    assert core.counters().prefix_hits_tokens_total == 16


def test_a_chunk_of_one_token_may_stand_among_chunks() -> None:
    """Two decodes in front, then queries of 3, 1 and 2 tokens, over blocks in no order."""
    query_lens, seq_lens = [1, 1, 3, 1, 2], [17, 5, 20, 1, 2]
    shape = kv_shape(tiny_source().config, 16, torch.float32)
    generator = torch.Generator().manual_seed(6)
    k_cache, v_cache = (torch.randn(11, 2, 16, 8, generator=generator) for _ in range(2))
    query = torch.randn(8, 4, 8, generator=generator)
    table = 1 + torch.randperm(10, generator=generator).int().view(5, 2)
    plan = (table, torch.zeros(8, dtype=torch.int64), [0, *accumulate(query_lens)], seq_lens, shape)
    got, expected = (
        attention_backend(CPU, name).plan(*plan).attend(query, k_cache, v_cache)
        for name in ("triton", "reference")
    )
    assert torch.allclose(got, expected, atol=1e-6)


def test_quantised_weights_are_multiplied_by_the_kernel() -> None:
    generator = torch.Generator().manual_seed(8)
    weight = quantize_int4(torch.randn(16, 64, generator=generator), 32)
    x = torch.randn(2, 64, generator=generator)
    product = attention_backend(CPU, "triton").linear(x, weight)
    assert torch.allclose(product, x @ weight.dequantize(torch.float32).T, atol=1e-4)


class EagerCapture:
    """In place of a CUDA graph: the same buffers and sizes, run anew each time."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_launched = 0

    def __call__(self, work: Work) -> Work:
        self.num_captured += 1

        def launch() -> torch.Tensor:
            self.num_launched += 1
            return work()

        return launch


def test_padded_decodes_have_the_same_tokens(on_cpu: TorchExecutor) -> None:
    """Three sequences in a batch of four, then one, on buffers that three used before."""
    capture = EagerCapture()
    executor = make_executor("triton", capture=capture)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 32}
    core = make_core(executor, **sizes)
    executor.capture_decodes(EngineConfig(num_blocks=400, max_model_len=64, **sizes))
    assert capture.num_captured == 3, "sizes 1, 2, 4"
    asked = [
        make_request(f"r{i}", range(30 + i, 33 + 2 * i), max_tokens=count, ignore_eos=True, block_size=16)
        for i, count in enumerate([2, 3, 2])
    ]
    assert answers(core, asked) == answers(make_core(on_cpu, **sizes), asked)
    assert (capture.num_captured, capture.num_launched) == (3, 2), "one step was the prompts'"


ROWS = {
    "greedy": row(temperature=0.0),
    "drawn": row(3, sibling=2, seed=2**64 - 5, temperature=0.8),
    "cut": row(top_k=5, top_p=0.5, min_p=0.1, seed=7),
    "every top-k": row(top_k=2**40, seed=7),
    "told": row(seed=9, num_logprobs=3),
    "penalised": row(2, presence_penalty=1.0, repetition_penalty=1.1, history=[3, 4, 4], seed=4),
    "biased": row(logit_bias=((3, 9.0), (5, -1.0)), seed=3),
    "masked": row(1, masked=(3,), frequency_penalty=0.5, history=[5, 3], seed=2),
    "outside the vocabulary": row(logit_bias=((40, 1.0),)),
    "history too short": row(3, presence_penalty=1.0, history=[1]),
    "no temperature": row(temperature=float("nan")),
}


def test_rows_are_drawn_and_fail_as_by_torch() -> None:
    from engine.triton_sampler import draw

    logits = torch.randn(len(ROWS), 40, generator=torch.Generator().manual_seed(2)) * 2
    asked = list(ROWS.values())
    drawn = sample(logits, asked, draw)
    assert drawn == sample(logits, asked)
    assert [name for name, one in zip(ROWS, drawn, strict=True) if one.error] == list(ROWS)[-3:]


def test_edits_are_told_row_by_row() -> None:
    from engine.triton_sampler import edits_of

    rows = [
        row(3, presence_penalty=0.5, frequency_penalty=0.25, history=[4, 1, 3, 3]),
        row(masked=(2,), logit_bias=((1, -1.5),), history=[0]),
        row(0, repetition_penalty=1.5, history=[2, 2]),
    ]
    edits = edits_of(rows, torch.zeros(3, 5))
    assert edits.bias_begins.tolist() == [0, 0, 2, 2]
    assert edits.bias_token_ids.tolist() == [1, 2]
    assert edits.biases.tolist() == [-1.5, float("-inf")]
    assert edits.presence.tolist() == [0.5, 0.0, 0.0]
    assert edits.frequency.tolist() == [0.25, 0.0, 0.0]
    assert edits.repetition.tolist() == [1.0, 1.0, 1.5]
    assert edits.output_counts.tolist() == [[0, 1, 0, 2, 0], [0] * 5, [0] * 5]
    assert edits.is_in_prompt.int().tolist() == [[0, 0, 0, 0, 1], [0] * 5, [0, 0, 1, 0, 0]]


def test_a_row_that_is_not_finite_fails_alone() -> None:
    from engine.triton_sampler import draw

    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(2))
    logits[0, 7] = float("nan")
    assert sample(logits, [row(seed=1), row(seed=1)], draw) == sample(logits, [row(seed=1), row(seed=1)])
    assert sample(logits[:1], [row()], draw) == [Draw(None, error="non_finite_logits")]


def test_what_is_too_near_to_tell_is_drawn_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four equal logits, cut on the border between the second and the third."""
    from engine import triton_sampler

    left: list[SampledRow] = []

    def record(logits: torch.Tensor, rows: list[SampledRow]) -> list[int | None]:
        left.extend(rows)
        return [99] * len(rows)

    monkeypatch.setattr(triton_sampler, "draw_by_torch", record)
    clear, near = row(temperature=0.0), row(seed=3, top_p=0.5, temperature=2.0)
    assert triton_sampler.draw(torch.zeros(2, 4), [clear, near]) == [0, 99]
    assert left == [near]


def test_kernels_go_by_the_device_or_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.triton_backend import TritonBackend

    assert isinstance(attention_backend(CPU), CpuBackend)
    assert isinstance(attention_backend(CPU, "reference"), ReferenceBackend)
    assert isinstance(attention_backend(CPU, "triton"), TritonBackend)
    with pytest.raises(ValueError, match="the CPU path does not run on meta"):
        attention_backend(torch.device("meta"), "cpu")
    with pytest.raises(ValueError, match="reference mode has kernels of its own"):
        attention_backend(CPU, "triton", is_deterministic=True)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="need a CUDA GPU, not cpu"):
        attention_backend(CPU, "triton")


def test_float64_is_refused() -> None:
    shape = kv_shape(tiny_source().config, 16, torch.float64)
    table, slots = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="not in float64"):
        attention_backend(CPU, "triton").plan(table, slots, [0, 1], [1], shape)


def test_triton_is_imported_only_when_it_is_chosen() -> None:
    program = (
        "import sys, torch; from engine.torch_executor import attention_backend; "
        "attention_backend(torch.device('cpu')); print('triton' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    assert told.stdout == "False\n"
