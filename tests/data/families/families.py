"""Tiny models of every family: configurations, and weights from a seed. Needs no engine, no transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Array = npt.NDArray[np.float32]

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def _config(architecture: str, **own: Any) -> dict[str, Any]:
    common = {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "vocab_size": 97,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return common | own


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _config("LlamaForCausalLM"),
    "llama-linear": _config(
        "LlamaForCausalLM", rope_theta=100.0, rope_scaling={"type": "linear", "factor": 4.0}
    ),
    "llama-llama3": _config(
        "LlamaForCausalLM",
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        rope_parameters=_LLAMA3 | {"rope_theta": 500.0},
    ),
    "mistral": _config(
        "MistralForCausalLM",
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        rope_theta=1e6,
        sliding_window=48,
    ),
    "qwen2": _config(
        "Qwen2ForCausalLM",
        hidden_size=28,
        num_attention_heads=7,
        tie_word_embeddings=True,
        rope_theta=1e6,
        use_sliding_window=False,
        sliding_window=32,
        max_window_layers=1,
    ),
    "qwen2-yarn": _config("Qwen2ForCausalLM", rope_theta=500.0, rope_scaling=_YARN),
    "qwen3": _config(
        "Qwen3ForCausalLM",
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    family = config["architectures"][0]
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if family == "Qwen2ForCausalLM":
        sizes = {"q": query, "k": kv, "v": kv}
        layer |= {f"self_attn.{which}_proj.bias": (size,) for which, size in sizes.items()}
    if family == "Qwen3ForCausalLM":
        layer |= {f"self_attn.{which}_norm.weight": (head_dim,) for which in "qk"}
    result: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        result["lm_head.weight"] = (config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        result |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return result


def weights(config: dict[str, Any], seed: int = 7) -> dict[str, Array]:
    """Matrices that keep the scale of what they multiply; norms and biases that are far from neutral."""
    random = np.random.default_rng(seed)
    result = {}
    for name, shape in shapes(config).items():
        if "embed_tokens" in name:
            values = random.standard_normal(shape)
        elif len(shape) == 2:
            values = random.standard_normal(shape) * 2 / np.sqrt(shape[1])
        else:
            values = random.uniform(0.5, 1.5, shape) * (-1 if name.endswith("bias") else 1)
        result[name] = values.astype(np.float32)
    return result


def write_folder(config: dict[str, Any], folder: Path, tensors: dict[str, Array] | None = None) -> Path:
    """A Hugging Face folder without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(config) if tensors is None else tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
