"""Makes tiny quantised models again, as GPTQ and AWQ write them: numbers, zeros and scales from a seed.

    python tests/data/quantized/make_quantized.py

Each folder is a whole model of one layer without a tokenizer; `dequantized.npz` holds what its projections
stand for, computed weight by weight in loops that share nothing with the reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

SEED = 45
FOLDER = Path(__file__).parent
GROUP = 32
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 266,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False}
KINDS: dict[str, dict[str, Any]] = {
    "gptq": GPTQ | {"desc_act": False},
    "gptq_v2": GPTQ | {"desc_act": False, "checkpoint_format": "gptq_v2"},
    "gptq_sym": GPTQ | {"desc_act": False, "sym": True},
    "gptq_act_order": GPTQ | {"desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
}
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in the word, from the lowest four bits up, the outputs 0 to 7 stand."""
PROJECTIONS = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}
"""[outputs, inputs]"""

Array = npt.NDArray[Any]


def main() -> None:
    for number, (kind, quantization) in enumerate(KINDS.items()):
        write_model(FOLDER / kind, kind, quantization, np.random.default_rng(SEED + number))


def write_model(folder: Path, kind: str, quantization: dict[str, Any], random: np.random.Generator) -> None:
    folder.mkdir(exist_ok=True)
    tensors = {
        "model.embed_tokens.weight": random.standard_normal((CONFIG["vocab_size"], 64)).astype(np.float16),
        "model.norm.weight": np.ones(64, np.float16),
        "model.layers.0.input_layernorm.weight": np.ones(64, np.float16),
        "model.layers.0.post_attention_layernorm.weight": np.ones(64, np.float16),
    }
    dense = {}
    for projection, shape in PROJECTIONS.items():
        name = f"model.layers.0.{projection}"
        parts, dense[f"{name}.weight"] = make_projection(kind, shape, random)
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    np.savez_compressed(folder / "dequantized.npz", **dense)
    stated = CONFIG | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(stated, separators=(",", ":")) + "\n", encoding="utf-8")


def make_projection(
    kind: str, shape: tuple[int, int], random: np.random.Generator
) -> tuple[dict[str, Array], Array]:
    outputs, inputs = shape
    numbers = random.integers(0, 16, shape)
    zeros = random.integers(1, 16, (inputs // GROUP, outputs))
    if kind == "gptq_sym":
        zeros[:] = 8
    scales = random.uniform(0.01, 0.05, (inputs // GROUP, outputs)).astype(np.float16)
    groups = np.arange(inputs) // GROUP
    if kind == "gptq_act_order":
        random.shuffle(groups)
    dense = np.zeros(shape, np.float32)
    for n in range(outputs):
        for k in range(inputs):
            group = groups[k]
            dense[n, k] = np.float32(numbers[n, k] - zeros[group, n]) * np.float32(scales[group, n])
    if kind == "awq":
        parts = {"qweight": awq_packed(numbers.T), "qzeros": awq_packed(zeros), "scales": scales}
        return parts, dense
    stored_zeros = zeros if kind == "gptq_v2" else zeros - 1
    parts = {
        "qweight": packed(numbers).T.copy(),
        "qzeros": packed(stored_zeros),
        "scales": scales,
        "g_idx": groups.astype(np.int32),
        "bias": np.zeros(outputs, np.float16),
    }
    return parts, dense


def packed(numbers: Array) -> Array:
    """[rows, 8n] → [rows, n]: number i of eight at bits 4i."""
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            words[row, column // 8] |= np.uint32(int(numbers[row, column]) << 4 * (column % 8))
    return words.view(np.int32)


def awq_packed(numbers: Array) -> Array:
    """As `packed`, the eight in AWQ's order."""
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            place = AWQ_PLACES[column % 8]
            words[row, column // 8] |= np.uint32(int(numbers[row, column]) << 4 * place)
    return words.view(np.int32)


if __name__ == "__main__":
    main()
