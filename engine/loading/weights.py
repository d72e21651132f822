"""Which tensors a Llama-family model has, under their Hugging Face names, and how GGUF keeps them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from engine.config import ModelConfig
from engine.loading.errors import ModelError

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

_GGUF_TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": LM_HEAD}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TENSORS_PER_LAYER = len(_GGUF_LAYER)


def name_of_gguf(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name that is not known stays as it is."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    match = re.fullmatch(r"blk\.(\d{1,6})\.(\w+)\.weight", name)
    if match is None or match[2] not in _GGUF_LAYER:
        return name
    return f"model.layers.{match[1]}.{_GGUF_LAYER[match[2]]}.weight"


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Name and shape ([out features, in features] or [features]) of one layer's tensors."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    prefix = f"model.layers.{layer}."
    return {
        prefix + "input_layernorm.weight": (hidden,),
        prefix + "self_attn.q_proj.weight": (query_size, hidden),
        prefix + "self_attn.k_proj.weight": (kv_size, hidden),
        prefix + "self_attn.v_proj.weight": (kv_size, hidden),
        prefix + "self_attn.o_proj.weight": (hidden, query_size),
        prefix + "post_attention_layernorm.weight": (hidden,),
        prefix + "mlp.gate_proj.weight": (inner, hidden),
        prefix + "mlp.up_proj.weight": (inner, hidden),
        prefix + "mlp.down_proj.weight": (hidden, inner),
    }


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
    """Raises ModelError, naming the tensor, unless the file holds exactly this model."""
    remedy = "give a complete file of a Llama-family model"
    if config.num_layers * TENSORS_PER_LAYER > len(found):
        raise ModelError(f"{config.num_layers} layers announced, {len(found)} tensors in the file", remedy)
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"tensor {name!r} is missing", remedy)
        if found[name] != shape:
            raise ModelError(f"tensor {name!r} has shape {found[name]}, expected {shape}", remedy)
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        raise ModelError(f"tensor {unknown[0]!r} is not part of a Llama model as it is built here", remedy)


def half_split_rows(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows of a Q or K projection from GGUF's order to the half-split one.

    GGUF stores each head's rows for interleaved RoPE (pairs 2i, 2i + 1); here RoPE rotates the pairs
    (i, i + head_dim / 2). `weight` is [num_heads * head_dim, in features].
    """
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
