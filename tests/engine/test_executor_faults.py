"""A row that goes wrong in the executor is that row's error, and leaves nothing behind for others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import pytest
import torch

from engine.loading.weights import EMBEDDING
from engine.models.decoder import Decoder
from engine.request import SamplingParams
from engine.step import ScheduledRequest, StepPlan, StepResult
from engine.torch_executor import TorchExecutor
from tests.builders_model import tiny_answers, tiny_source

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
ROWS = tiny_answers()
PROMPTS = [row["prompt_token_ids"] for row in ROWS[:3]]
FIRST = [row["token_ids"][0] for row in ROWS[:3]]
SECOND = [row["token_ids"][1] for row in ROWS[:3]]
POISON = next(token_id for token_id in range(3, 300) if all(token_id not in row for row in PROMPTS))
"""A token whose embedding is not a number."""


class PoisonedSource:
    """The tiny model with one embedding that is `value`."""

    def __init__(self, value: float) -> None:
        self._source = tiny_source()
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for name, array in self._source.weights():
            if name == EMBEDDING:
                array = array.copy()
                array[POISON, 7] = self._value
            yield name, array


def make_executor(source: Any, *, deterministic: bool = True) -> TorchExecutor:
    executor = TorchExecutor(
        source, device="cpu", dtype="float64", deterministic=deterministic, num_threads=1
    )
    executor.allocate_kv(40)
    return executor


@pytest.fixture(scope="module", params=[float("nan"), float("inf")], ids=["nan", "inf"])
def poisoned(request: pytest.FixtureRequest) -> TorchExecutor:
    return make_executor(PoisonedSource(request.param))


@pytest.fixture(scope="module")
def clean() -> TorchExecutor:
    return make_executor(tiny_source())


def prefill(name: str, tokens: list[int], block: int, **fields: Any) -> ScheduledRequest:
    blocks = tuple(range(block, block + -(-(len(tokens) + 1) // 16)))
    return ScheduledRequest(
        name, tuple(tokens), 0, blocks, **{"output_index": 0, "sampling": GREEDY, **fields}
    )


def decode(name: str, prompt: list[int], block: int, first: int) -> ScheduledRequest:
    blocks = tuple(range(block, block + -(-(len(prompt) + 1) // 16)))
    return ScheduledRequest(name, (first,), len(prompt), blocks, 1, GREEDY)


def run(executor: TorchExecutor, *scheduled: ScheduledRequest) -> StepResult:
    return executor.submit(StepPlan(0, scheduled)).result()


def is_finite(executor: TorchExecutor) -> bool:
    return all(bool(cache.isfinite().all()) for layer in executor._kv.layers for cache in layer)


def test_a_row_that_is_not_finite_is_its_own_error(poisoned: TorchExecutor) -> None:
    bad = [*PROMPTS[1][:3], POISON, *PROMPTS[1][3:]]
    result = run(poisoned, prefill("a", PROMPTS[0], 1), prefill("bad", bad, 10), prefill("c", PROMPTS[2], 20))
    assert result.errors == {1: "non_finite_logits"}
    assert result.token_ids == (FIRST[0], None, FIRST[2])


def test_so_is_a_chunk_that_samples_nothing(poisoned: TorchExecutor) -> None:
    result = run(poisoned, prefill("bad", [5, POISON, 6], 1, output_index=None), prefill("b", PROMPTS[1], 10))
    assert result.errors == {0: "non_finite_logits"}
    assert result.token_ids == (None, FIRST[1])


@pytest.mark.parametrize("is_deterministic", [True, False], ids=["reference mode", "cpu path"])
def test_blocks_of_a_bad_row_may_be_used_again(is_deterministic: bool) -> None:
    """What a short sequence reads as padding in its last block, the bad one wrote."""
    executor = make_executor(PoisonedSource(float("nan")), deterministic=is_deterministic)
    bad = [POISON] * 100
    assert run(executor, prefill("bad", bad, 1), prefill("b", PROMPTS[1], 20)).errors == {
        0: "non_finite_logits"
    }
    assert is_finite(executor)
    reusing = run(executor, prefill("a", PROMPTS[0], 1), decode("b", PROMPTS[1], 20, FIRST[1]))
    assert (reusing.token_ids, reusing.errors) == ((FIRST[0], SECOND[1]), {})
    both = run(executor, decode("a", PROMPTS[0], 1, FIRST[0]), prefill("c", PROMPTS[2], 5))
    assert (both.token_ids, both.errors) == ((SECOND[0], FIRST[2]), {})


def test_a_bad_row_s_earlier_tokens_stay(poisoned: TorchExecutor) -> None:
    """Only what this step wrote is cleared: blocks before it may be shared."""
    poisoned.allocate_kv(40)
    prompt = PROMPTS[1][:16]
    run(poisoned, prefill("a", prompt, 1, output_index=None))
    before = [cache[1].clone() for layer in poisoned._kv.layers for cache in layer]
    result = run(poisoned, ScheduledRequest("bad", (POISON,), 16, (1, 2), 0, GREEDY))
    assert result.errors == {0: "non_finite_logits"}
    after = [cache[1] for layer in poisoned._kv.layers for cache in layer]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_poisoned_cache_is_the_error_of_who_reads_it(clean: TorchExecutor) -> None:
    clean.allocate_kv(40)
    run(clean, prefill("a", PROMPTS[0], 1), prefill("b", PROMPTS[1], 10))
    clean._kv.layers[1][0][10, 0, 2, 3] = float("nan")
    result = run(clean, decode("a", PROMPTS[0], 1, FIRST[0]), decode("b", PROMPTS[1], 10, FIRST[1]))
    assert (result.token_ids, result.errors) == ((SECOND[0], None), {1: "non_finite_logits"})


def test_a_row_that_the_sampler_cannot_draw_is_its_own_error(clean: TorchExecutor) -> None:
    impossible = SamplingParams(max_tokens=1, temperature=0.0, logit_bias=((10**6, 1.0),))
    result = run(clean, prefill("a", PROMPTS[0], 1), prefill("b", PROMPTS[1], 10, sampling=impossible))
    assert (result.token_ids, result.errors) == ((FIRST[0], None), {1: "sampler_error"})


def test_logprobs_come_for_the_rows_that_asked(clean: TorchExecutor) -> None:
    asking = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=2)
    result = run(
        clean,
        prefill("a", PROMPTS[0], 1),
        prefill("chunk", PROMPTS[1][:2], 10, output_index=None, sampling=asking),
        prefill("c", PROMPTS[2], 20, sampling=asking),
    )
    assert set(result.logprobs) == {2}
    told = result.logprobs[2]
    assert told.top[0] == (FIRST[2], told.logprob)
    assert len(told.top) == 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_after_a_failed_step_a_reset_forgets_what_was_half_written(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(tiny_source(), deterministic=False)
    mlp = Decoder._mlp

    def fails_in_the_second_layer(self: Decoder, layer: Any, hidden: torch.Tensor) -> torch.Tensor:
        if layer is self._weights.layers[1]:
            raise error
        executor._kv.layers[0][0][1:9] = float("nan")
        return mlp(self, layer, hidden)

    with monkeypatch.context() as broken:
        broken.setattr(Decoder, "_mlp", fails_in_the_second_layer)
        with pytest.raises(type(error)):
            run(executor, prefill("a", PROMPTS[0], 1))
    executor.reset()
    assert all(not cache.any() for layer in executor._kv.layers for cache in layer)
    assert run(executor, prefill("a", PROMPTS[0], 1)).token_ids == (FIRST[0],)
    result = run(executor, decode("a", PROMPTS[0], 1, FIRST[0]), prefill("b", PROMPTS[1], 10))
    assert result.token_ids == (SECOND[0], FIRST[1])
