"""GGUF's number formats are read exactly: against dequantisers written out from llama.cpp's layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.loading.gguf_file import TENSOR_TYPES, GgufFile
from tests.builders_gguf import random_blocks, write_gguf
from tests.data.families.families import FAMILIES

Kind = GGMLQuantizationType
f32 = np.float32


def half(block: bytes, start: int) -> np.float32:
    return f32(np.frombuffer(block[start : start + 2], np.float16)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def q4_0(block: bytes) -> list[np.float32]:
    scale, quants = half(block, 0), block[2:]
    return [scale * f32((byte & 15) - 8) for byte in quants] + [
        scale * f32((byte >> 4) - 8) for byte in quants
    ]


def q4_1(block: bytes) -> list[np.float32]:
    scale, least, quants = half(block, 0), half(block, 2), block[4:]
    values = [byte & 15 for byte in quants] + [byte >> 4 for byte in quants]
    return [scale * f32(value) + least for value in values]


def q8_0(block: bytes) -> list[np.float32]:
    return [half(block, 0) * f32(signed(byte)) for byte in block[2:]]


def q4_k(block: bytes) -> list[np.float32]:
    """Eight runs of 32 weights; their scales and minima have 6 bits each, packed into 12 bytes."""
    scale, least, packed, quants = half(block, 0), half(block, 2), block[4:16], block[16:]
    values = []
    for run in range(8):
        if run < 4:
            run_scale, run_least = packed[run] & 63, packed[run + 4] & 63
        else:
            run_scale = (packed[run + 4] & 15) | (packed[run - 4] >> 6 << 4)
            run_least = (packed[run + 4] >> 4) | (packed[run] >> 6 << 4)
        for byte in quants[run // 2 * 32 : run // 2 * 32 + 32]:
            value = byte >> 4 if run % 2 else byte & 15
            values.append(scale * f32(run_scale) * f32(value) - least * f32(run_least))
    return values


def q6_k(block: bytes) -> list[np.float32]:
    """Sixteen runs of 16 weights: 4 low bits each, 2 high bits elsewhere, a signed scale a run."""
    low, high, scales, scale = block[:128], block[128:192], block[192:208], half(block, 208)
    values = []
    for index in range(256):
        part, place = divmod(index, 128)
        quarter, lane = divmod(place, 32)
        byte = low[part * 64 + (quarter % 2) * 32 + lane]
        bits = byte >> 4 if quarter >= 2 else byte & 15
        bits |= (high[part * 32 + lane] >> 2 * quarter & 3) << 4
        values.append(scale * f32(signed(scales[index // 16])) * f32(bits - 32))
    return values


NAIVE: dict[str, Callable[[bytes], list[np.float32]]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q6_K": q6_k,
}


@pytest.mark.parametrize("name", NAIVE)
def test_every_block_is_read_as_it_is_written_out_here(tmp_path: Path, name: str) -> None:
    kind, random = Kind[name], np.random.default_rng(3)
    blocks = random_blocks((6, 512), kind, random)
    file = write_gguf(
        tmp_path / "m.gguf", FAMILIES["qwen2"], {"model.embed_tokens.weight": blocks}, tensor_type=kind
    )
    weights = GgufFile.open(file).tensor("token_embd.weight")
    block_bytes = GGML_QUANT_SIZES[kind][1]
    expected = [NAIVE[name](block.tobytes()) for block in blocks.reshape(-1, block_bytes)]
    assert weights.dtype == np.float32
    assert np.array_equal(weights, np.array(expected, np.float32).reshape(6, 512))
    assert len(np.unique(weights)) > 10


@pytest.mark.parametrize(("name", "bits"), [("F16", np.float16), ("BF16", np.uint16), ("F32", np.float32)])
def test_plain_numbers_are_widened_exactly(tmp_path: Path, name: str, bits: type[np.generic]) -> None:
    values = np.random.default_rng(4).standard_normal((4, 32)).astype(np.float32)
    file = write_gguf(
        tmp_path / "m.gguf", FAMILIES["qwen2"], {"model.embed_tokens.weight": values}, tensor_type=Kind[name]
    )
    weights = GgufFile.open(file).tensor("token_embd.weight")
    if name == "BF16":
        assert not (weights.view(np.uint32) & 0xFFFF).any()
        assert np.allclose(weights, values, rtol=2**-8, atol=0)
    else:
        assert np.array_equal(weights, values.astype(bits).astype(np.float32))


def test_block_sizes_are_those_of_the_format() -> None:
    expected = {
        int(Kind[name]): (name, *GGML_QUANT_SIZES[Kind[name]]) for name in [*NAIVE, "F32", "F16", "BF16"]
    }
    assert expected == TENSOR_TYPES
