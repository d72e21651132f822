"""SmolLM2 in float32 says what transformers says: stored greedy tokens, run as one ragged batch.

The tokens and the script that made them are in `tests/data/golden`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.loading.source import ModelSource, resolve_model
from engine.torch_executor import TorchExecutor
from tests.builders import make_request
from tests.builders_model import answers, make_torch_core

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden" / "smollm2.json").read_text("utf-8"))
PROMPTS = GOLDEN["prompts"]
CHUNK = 256


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return resolve_model("smollm2")


@pytest.fixture(scope="module")
def executor(source: ModelSource) -> Iterator[TorchExecutor]:
    before = torch.get_num_threads()
    yield TorchExecutor(source, device="cpu", dtype="float32", num_threads=2)
    torch.set_num_threads(before)


def test_the_prompts_are_what_they_should_be() -> None:
    assert len(PROMPTS) == 24
    assert {len(row["token_ids"]) for row in PROMPTS} == {64}
    assert min(row["min_margin"] for row in PROMPTS) >= 1e-3
    lengths = [len(row["prompt_token_ids"]) for row in PROMPTS]
    assert min(lengths) < 10
    assert max(lengths) > CHUNK


def test_greedy_text_equals_transformers(source: ModelSource, executor: TorchExecutor) -> None:
    core = make_torch_core(
        source, dtype="float32", executor=executor, max_num_seqs=24, max_num_batched_tokens=CHUNK
    )
    requests = [
        make_request(f"r{i}", row["prompt_token_ids"], max_tokens=64, ignore_eos=True, block_size=16)
        for i, row in enumerate(PROMPTS)
    ]
    for row, answer in zip(PROMPTS, answers(core, requests), strict=True):
        assert answer == row["token_ids"], row.get("text") or row["messages"][-1]["content"]
