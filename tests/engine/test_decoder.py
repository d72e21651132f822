"""The decoder: equal to transformers for every family, on either backend, from either file format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from engine.attention_backend import (
    AttentionBackend,
    CpuBackend,
    ReferenceBackend,
    attention_backend,
    kv_shape,
)
from engine.build import build_executor
from engine.config import EngineConfig
from engine.loading.source import ModelSource, resolve_model
from engine.models.decoder import Decoder, load_weights
from engine.request import SamplingParams
from engine.step import ScheduledRequest, StepPlan
from tests.builders_gguf import Array, random_blocks, write_gguf
from tests.builders_model import tiny_answers, tiny_source, write_tiny_gguf
from tests.data.families.families import FAMILIES, weights, write_folder

CPU = torch.device("cpu")
BLOCK_SIZE = 16
GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "families" / "logits.json").read_text())
BACKENDS = [ReferenceBackend(), CpuBackend()]
Kind = GGMLQuantizationType


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Tensors of a few hundred numbers: a second thread only waits for the first."""
    torch.set_num_threads(1)


def make_decoder(
    source: ModelSource, backend: AttentionBackend, dtype: torch.dtype = torch.float64
) -> Decoder:
    return Decoder(
        source.config, load_weights(source.config, source.weights(), dtype=dtype, device=CPU), backend
    )


def all_logits(
    source: ModelSource, model: Decoder, backend: AttentionBackend, token_ids: list[int], dtype: torch.dtype
) -> Tensor:
    """Logits at every position of one sequence, computed at once."""
    config, length = source.config, len(token_ids)
    num_blocks = -(-length // BLOCK_SIZE)
    shape = (num_blocks + 1, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
    caches = [
        (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(config.num_layers)
    ]
    attention = backend.plan(
        torch.arange(1, num_blocks + 1, dtype=torch.int32)[None],
        torch.arange(length) + BLOCK_SIZE,
        [0, length],
        [length],
        kv_shape(config, BLOCK_SIZE, dtype),
    )
    hidden = model.forward(torch.tensor(token_ids), torch.arange(length), attention, caches)
    return model.logits(hidden)


def greedy_from_scratch(
    source: ModelSource,
    backend: AttentionBackend,
    prompt: list[int],
    count: int,
    dtype: torch.dtype = torch.float64,
) -> list[int]:
    """Prefills the whole sequence again for each token: no cache is reused."""
    model = make_decoder(source, backend, dtype)
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(int(all_logits(source, model, backend, sequence, dtype)[-1].argmax()))
    return sequence[len(prompt) :]


@pytest.mark.parametrize("backend", BACKENDS, ids=["reference", "cpu"])
def test_equals_plain_numpy(backend: AttentionBackend) -> None:
    for row in tiny_answers()[:3]:
        answer = greedy_from_scratch(tiny_source(), backend, row["prompt_token_ids"], 12)
        assert answer == row["token_ids"][:12]


@pytest.mark.parametrize("backend", BACKENDS, ids=["reference", "cpu"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_says_what_transformers_says(
    tmp_path: Path, name: str, backend: AttentionBackend
) -> None:
    row = GOLDEN[name]
    source = resolve_model(str(write_folder(FAMILIES[name], tmp_path / name)))
    logits = all_logits(
        source, make_decoder(source, backend, torch.float32), backend, row["prompt"], torch.float32
    )
    torch.testing.assert_close(logits[row["positions"]], torch.tensor(row["logits"]), rtol=0, atol=5e-5)
    assert greedy_from_scratch(source, backend, row["prompt"], 8, torch.float32) == row["greedy"]


GGUF_ROPE: dict[str, Any] = {
    "llama-linear": lambda writer: (
        writer.add_string("llama.rope.scaling.type", "linear"),
        writer.add_rope_scaling_factor(4.0),
    ),
    "llama-llama3": lambda writer: writer.add_tensor("rope_freqs.weight", llama3_divisors()),
    "qwen2-yarn": lambda writer: (
        writer.add_string("qwen2.rope.scaling.type", "yarn"),
        writer.add_rope_scaling_factor(4.0),
        writer.add_rope_scaling_orig_ctx_len(64),
    ),
}


def llama3_divisors() -> Array:
    """As llama.cpp's converter works them out for the model `llama-llama3`, in float32."""
    config = FAMILIES["llama-llama3"]
    stated, head_dim = config["rope_parameters"], config["hidden_size"] // config["num_attention_heads"]
    original, factor = stated["original_max_position_embeddings"], stated["factor"]
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * np.pi * stated["rope_theta"] ** (2 * pair / head_dim)
        if wavelength < original / stated["high_freq_factor"]:
            divisors.append(1.0)
        elif wavelength > original / stated["low_freq_factor"]:
            divisors.append(factor)
        else:
            low, high = stated["low_freq_factor"], stated["high_freq_factor"]
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_the_same_model_as_gguf(tmp_path: Path, name: str) -> None:
    config, row = FAMILIES[name], GOLDEN[name]
    edit = GGUF_ROPE.get(name, lambda writer: None)
    file = write_gguf(tmp_path / "model.gguf", config, weights(config), edit=edit)
    source = resolve_model(str(file))
    folder = resolve_model(str(write_folder(config, tmp_path / name)))
    assert source.config.max_model_len == folder.config.max_model_len
    assert source.config.rope.scaling == folder.config.rope.scaling
    backend = CpuBackend()
    logits, expected = (
        all_logits(model, make_decoder(model, backend), backend, row["prompt"], torch.float64)
        for model in (source, folder)
    )
    # Llama 3's divisors are float32 in GGUF, and so is every model's epsilon.
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert greedy_from_scratch(source, backend, row["prompt"], 8) == row["greedy"]


WIDE = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 2.0**-10,
    "tie_word_embeddings": True,
}
"""Rows of 256, the largest block; an epsilon that float32 holds exactly."""


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_a_quantised_file_is_bit_for_bit_the_model_of_its_dequantised_weights(
    tmp_path: Path, family: str, kind: str
) -> None:
    config = FAMILIES[family] | WIDE
    random, tensor_type = np.random.default_rng(5), Kind[kind]
    stored = {
        name: _stored(weight, tensor_type, random) if weight.ndim == 2 else weight
        for name, weight in weights(config).items()
    }
    plain = {
        name: dequantize(rows, tensor_type).reshape(-1, rows_of.shape[1]) if rows.ndim == 2 else rows
        for (name, rows), rows_of in zip(stored.items(), weights(config).values(), strict=True)
    }
    file = resolve_model(str(write_gguf(tmp_path / "model.gguf", config, stored, tensor_type=tensor_type)))
    folder = resolve_model(str(write_folder(config, tmp_path / "folder", plain)))
    backend, prompt = CpuBackend(), list(range(3, 23))
    logits, expected = (
        all_logits(model, make_decoder(model, backend, torch.float32), backend, prompt, torch.float32)
        for model in (file, folder)
    )
    assert torch.isfinite(expected).all()
    assert torch.equal(logits, expected)


def _stored(weight: Array, kind: GGMLQuantizationType, random: np.random.Generator) -> Array:
    """Rows of bytes. The K kinds cannot be made from weights here: any bytes are a matrix in them."""
    if kind.name.endswith("_K"):
        return random_blocks((weight.shape[0], weight.shape[1]), kind, random)
    return np.ascontiguousarray(quantize(weight, kind)).view(np.uint8).reshape(len(weight), -1)


def test_gguf_rows_are_put_back_into_half_split_order(tmp_path: Path) -> None:
    source = resolve_model(str(write_tiny_gguf(tmp_path / "tiny.gguf")))
    row = tiny_answers()[1]
    assert greedy_from_scratch(source, CpuBackend(), row["prompt_token_ids"], 12) == row["token_ids"][:12]


def test_positions_go_as_far_as_the_served_context(tmp_path: Path) -> None:
    """Beyond the trained one too, if that was asked for."""
    source = tiny_source()
    served = source.config.max_model_len + 32
    engine = EngineConfig(num_blocks=served // BLOCK_SIZE + 2, max_model_len=served)
    executor = build_executor(source, engine, dtype="float32", device="cpu", num_threads=1)
    blocks = tuple(range(1, served // BLOCK_SIZE + 1))
    last = ScheduledRequest("r", (7,), served - 1, blocks, 0, SamplingParams(max_tokens=1, temperature=0.0))
    assert executor.submit(StepPlan(0, (last,))).result().token_ids[0] is not None


def test_the_backend_follows_the_device() -> None:
    assert isinstance(attention_backend(CPU), CpuBackend)
    assert isinstance(attention_backend(torch.device("meta")), ReferenceBackend)


def test_tied_embeddings_share_their_memory(tmp_path: Path) -> None:
    source = resolve_model(str(write_tiny_gguf(tmp_path / "tied.gguf", without=["output.weight"])))
    assert source.config.tie_word_embeddings
    loaded = load_weights(source.config, source.weights(), dtype=torch.float32, device=CPU)
    assert loaded.lm_head is loaded.embedding
