"""Which tensors a model has, under their Hugging Face names, and how GGUF keeps them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from engine.config import ModelConfig
from engine.loading.errors import ModelError

_Number = TypeVar("_Number", bound=np.generic)

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

_GGUF_TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": LM_HEAD}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_REMEDY = "give a complete file of a Llama-family model"


def name_of_gguf(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name that is not known stays as it is."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    match = re.fullmatch(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _GGUF_LAYER:
        return name
    return f"model.layers.{match[1]}.{_GGUF_LAYER[match[2]]}.{match[3]}"


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Name and shape ([out features, in features] or [features]) of one layer's tensors."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, query_size),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.has_qkv_bias:
        shapes["self_attn.q_proj.bias"] = (query_size,)
        shapes["self_attn.k_proj.bias"] = shapes["self_attn.v_proj.bias"] = (kv_size,)
    if config.has_query_key_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        shapes |= layer_shapes(config, layer)
    return shapes


def check_shapes(config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelError, naming the size or the tensor, unless the file holds exactly this model."""
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            f"{config.num_heads} query heads cannot share {config.num_kv_heads} key heads evenly", _REMEDY
        )
    if config.num_layers * len(layer_shapes(config, 0)) > len(found):
        raise ModelError(f"{config.num_layers} layers announced, {len(found)} tensors in the file", _REMEDY)
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"tensor {name!r} is missing", _REMEDY)
        if found[name] != shape:
            raise ModelError(f"tensor {name!r} has shape {found[name]}, expected {shape}", _REMEDY)
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        raise ModelError(
            f"tensor {unknown[0]!r} is not part of a {config.architecture} model as it is built here", _REMEDY
        )


def is_projection(name: str) -> bool:
    """Whether a tensor is a matrix of attention or MLP: what is quantised, where anything is."""
    return name.endswith("_proj.weight")


def half_split_rows(weight: npt.NDArray[_Number], num_heads: int) -> npt.NDArray[_Number]:
    """Rows of a Q or K projection from GGUF's order to the half-split one.

    For Llama, GGUF stores each head's rows for interleaved RoPE (pairs 2i, 2i + 1); here RoPE rotates
    the pairs (i, i + head_dim / 2). `weight` is [num_heads * head_dim, in features].
    """
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
