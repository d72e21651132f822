"""The decoder on the tiny model: equal to plain numpy, on either backend, from either file format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.attention_backend import (
    AttentionBackend,
    CpuBackend,
    KvShape,
    ReferenceBackend,
    attention_backend,
)
from engine.loading.source import ModelSource, resolve_model
from engine.models.llama import LlamaModel, load_llama_weights
from tests.builders_model import tiny_answers, tiny_source, write_tiny_gguf

CPU = torch.device("cpu")
BLOCK_SIZE = 16


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Tensors of a few hundred numbers: a second thread only waits for the first."""
    torch.set_num_threads(1)


def greedy_from_scratch(
    source: ModelSource, backend: AttentionBackend, prompt: list[int], count: int
) -> list[int]:
    """Prefills the whole sequence again for each token: no cache is reused."""
    config = source.config
    weights = load_llama_weights(config, source.weights(), dtype=torch.float64, device=CPU)
    model = LlamaModel(config, weights, backend)
    sequence = list(prompt)
    for _ in range(count):
        length = len(sequence)
        num_blocks = -(-length // BLOCK_SIZE)
        caches = [
            (torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))
            for shape in [(num_blocks + 1, config.num_kv_heads, BLOCK_SIZE, config.head_dim)]
            * config.num_layers
        ]
        attention = backend.plan(
            torch.arange(1, num_blocks + 1, dtype=torch.int32)[None],
            torch.arange(length) + BLOCK_SIZE,
            [0, length],
            [length],
            KvShape(BLOCK_SIZE, config.num_kv_heads, config.head_dim, config.head_dim**-0.5, torch.float64),
        )
        hidden = model.forward(
            torch.tensor(sequence), torch.arange(length), attention, caches, torch.tensor([length - 1])
        )
        sequence.append(int(model.logits(hidden).argmax()))
    return sequence[len(prompt) :]


@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=["reference", "cpu"])
def test_equals_plain_numpy(backend: AttentionBackend) -> None:
    for row in tiny_answers()[:3]:
        answer = greedy_from_scratch(tiny_source(), backend, row["prompt_token_ids"], 12)
        assert answer == row["token_ids"][:12]


def test_gguf_rows_are_put_back_into_half_split_order(tmp_path: Path) -> None:
    source = resolve_model(str(write_tiny_gguf(tmp_path / "tiny.gguf")))
    row = tiny_answers()[1]
    assert greedy_from_scratch(source, CpuBackend(), row["prompt_token_ids"], 12) == row["token_ids"][:12]


def test_the_backend_follows_the_device() -> None:
    assert isinstance(attention_backend(CPU), CpuBackend)
    assert isinstance(attention_backend(torch.device("meta")), ReferenceBackend)


def test_tied_embeddings_share_their_memory(tmp_path: Path) -> None:
    source = resolve_model(str(write_tiny_gguf(tmp_path / "tied.gguf", without=["output.weight"])))
    assert source.config.tie_word_embeddings
    weights = load_llama_weights(source.config, source.weights(), dtype=torch.float32, device=CPU)
    assert weights.lm_head is weights.embedding
