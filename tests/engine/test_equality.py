"""Reference mode: exactly the solo run's tokens, logprobs and finish, whatever the company.

Each request runs alone once, without a prefix cache; then all of them under every way of cutting,
caching, batching and preempting. Equal means every bit of every logprob.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest

from engine.block_hash import hash_blocks
from engine.core import EngineCore
from engine.loading.source import resolve_model
from engine.request import Request, SamplingParams
from engine.torch_executor import TorchExecutor
from tests.builders import ROOT
from tests.builders_model import make_torch_core, tiny_source
from tests.engine.equality import BLOCK_SIZE, Answer, Outcome, differing, mixed_requests, one_by_one, outcomes

VOCAB_SIZE = tiny_source().config.vocab_size

SMOLLM2_PROMPTS = (
    "The river runs past the mill and",
    "The river runs past the mill and turns a wheel of oak; below it the water is",
    "def gcd(a: int, b: int) -> int:",
    "1, 1, 2, 3, 5, 8,",
)

WAYS: dict[str, dict[str, Any]] = {
    "16 at once": {"max_num_seqs": 16, "max_num_batched_tokens": 512, "enable_prefix_caching": False},
    "prefix cache": {"max_num_seqs": 16, "max_num_batched_tokens": 512},
    "chunks of 4": {"max_num_seqs": 4, "max_num_batched_tokens": 4},
    "chunks of 7": {"max_num_seqs": 5, "max_num_batched_tokens": 7, "enable_prefix_caching": False},
    "chunks of 16": {"max_num_seqs": 16, "max_num_batched_tokens": 16},
    "chunks of 64": {"max_num_seqs": 11, "max_num_batched_tokens": 64, "enable_prefix_caching": False},
    "few at a time, cached": {"max_num_seqs": 4, "max_num_batched_tokens": 40},
    "preempted": {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 100,
        "num_blocks": 16,
        "enable_prefix_caching": False,
    },
    "preempted, cached": {"max_num_seqs": 16, "max_num_batched_tokens": 64, "num_blocks": 14},
}


@pytest.fixture(scope="module")
def executor() -> TorchExecutor:
    return TorchExecutor(tiny_source(), device="cpu", dtype="float64", deterministic=True, num_threads=1)


def make_core(executor: TorchExecutor, **sizes: Any) -> EngineCore:
    return make_torch_core(tiny_source(), dtype="float64", executor=executor, **sizes)


@cache
def alone(executor: TorchExecutor, count: int) -> tuple[list[Request], dict[Answer, Outcome]]:
    """The requests, and what becomes of each answer on its own."""
    requests = mixed_requests(count, seed=count, vocab_size=VOCAB_SIZE)
    core = make_core(executor, max_num_seqs=1, max_num_batched_tokens=512, enable_prefix_caching=False)
    expected: dict[Answer, Outcome] = {}
    for request in one_by_one(requests):
        expected |= outcomes(core, [request])
    return requests, expected


def check(executor: TorchExecutor, count: int, way: str) -> EngineCore:
    requests, expected = alone(executor, count)
    core = make_core(executor, **WAYS[way])
    assert differing(expected, outcomes(core, requests, arrivals=Random(way))) == []
    counters = core.counters()
    assert counters.preemptions_total > 0 or "preempted" not in way
    assert counters.prefix_hits_tokens_total > 0 or not WAYS[way].get("enable_prefix_caching", True)
    return core


@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_requests_come_out_as_alone(executor: TorchExecutor, way: str) -> None:
    check(executor, 100, way)


def test_whole_prompts_from_the_cache_come_out_as_computed(executor: TorchExecutor) -> None:
    requests, expected = alone(executor, 100)
    core = check(executor, 100, "prefix cache")
    before = core.counters().prefix_hits_tokens_total
    assert differing(expected, outcomes(core, requests)) == []
    num_cacheable = sum((len(request.prompt_token_ids) - 1) // 16 * 16 for request in requests)
    assert core.counters().prefix_hits_tokens_total - before == num_cacheable


def test_the_requests_end_in_every_way_that_a_model_ends_them(executor: TorchExecutor) -> None:
    _, expected = alone(executor, 100)
    reasons = [outcome.finish_reason for outcome in expected.values()]
    assert min(reasons.count("stop"), reasons.count("length")) >= 10
    assert sum(outcome.logprobs is not None for outcome in expected.values()) >= 30


def test_a_real_model_in_float32_answers_as_alone() -> None:
    source = resolve_model("smollm2")
    executor = TorchExecutor(source, device="cpu", dtype="float32", deterministic=True, num_threads=2)
    tokenizer = source.tokenizer()
    sampling = SamplingParams(max_tokens=16, temperature=0.0, num_logprobs=1, ignore_eos=True)
    prompts = [tuple(tokenizer.encode(text)) for text in SMOLLM2_PROMPTS]
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=prompt,
            sampling=sampling,
            hash_root=ROOT,
            block_hashes=hash_blocks(ROOT, prompt, BLOCK_SIZE),
        )
        for i, prompt in enumerate(prompts)
    ]

    def run(requests: list[Request], **sizes: Any) -> dict[Answer, Outcome]:
        core = make_torch_core(
            source, dtype="float32", executor=executor, num_blocks=40, max_model_len=500, **sizes
        )
        return outcomes(core, requests)

    expected: dict[Answer, Outcome] = {}
    for request in requests:
        expected |= run([request], enable_prefix_caching=False)
    assert differing(expected, run(requests, max_num_seqs=4, max_num_batched_tokens=16)) == []
    assert differing(expected, run(requests[::-1], max_num_seqs=4, max_num_batched_tokens=64)) == []


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_requests_come_out_as_alone(executor: TorchExecutor, way: str) -> None:
    check(executor, 1000, way)
