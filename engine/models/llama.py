"""A Llama-family decoder over paged KV: flattened tokens in, hidden states of asked rows out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention_backend import AttentionBackend, StepAttention
from engine.config import ModelConfig
from engine.loading.weights import EMBEDDING, FINAL_NORM, LM_HEAD
from engine.rope import rope_tables


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Projections that read the same input are one matrix, so they are one matmul."""

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(H + 2 KVH) * D, hidden]
    output: Tensor  # [hidden, H * D]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * inner, hidden]
    down: Tensor  # [hidden, inner]


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    lm_head: Tensor  # [vocab, hidden]; the embedding itself where they are tied


def load_llama_weights(
    config: ModelConfig,
    weights: Iterable[tuple[str, npt.NDArray[Any]]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> LlamaWeights:
    """Takes each tensor once, in any order. Peak memory: the result plus one tensor in its own type."""
    loaded = {name: torch.tensor(array, dtype=dtype, device=device) for name, array in weights}
    embedding = loaded.pop(EMBEDDING)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(_take_layer(loaded, layer) for layer in range(config.num_layers)),
        final_norm=loaded.pop(FINAL_NORM),
        lm_head=embedding if config.tie_word_embeddings else loaded.pop(LM_HEAD),
    )


def _take_layer(loaded: dict[str, Tensor], layer: int) -> LayerWeights:
    def take(*names: str) -> Tensor:
        parts = [loaded.pop(f"model.layers.{layer}.{name}.weight") for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return LayerWeights(
        input_norm=take("input_layernorm"),
        qkv=take("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=take("self_attn.o_proj"),
        mlp_norm=take("post_attention_layernorm"),
        gate_up=take("mlp.gate_proj", "mlp.up_proj"),
        down=take("mlp.down_proj"),
    )


class LlamaModel:
    """Weights and RoPE tables; holds no request and no KV of its own."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, backend: AttentionBackend) -> None:
        self._config = config
        self._weights = weights
        self._backend = backend
        embedding = weights.embedding
        self._cos, self._sin = rope_tables(
            config.rope,
            config.head_dim,
            config.max_model_len,
            dtype=embedding.dtype,
            device=embedding.device,
        )

    def forward(
        self,
        token_ids: Tensor,  # [T] int64
        positions: Tensor,  # [T] int64
        attention: StepAttention,
        kv_caches: list[tuple[Tensor, Tensor]],  # a layer: K and V, each [N, KVH, B, D]
        rows: Tensor,  # [R] int64: the tokens whose hidden state is asked for
    ) -> Tensor:
        """Writes the tokens' K and V into the caches. Returns hidden states [R, hidden]."""
        hidden = F.embedding(token_ids, self._weights.embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        for layer, (k_cache, v_cache) in zip(self._weights.layers, kv_caches, strict=True):
            hidden = hidden + self._attend(layer, hidden, cos, sin, attention, k_cache, v_cache)
            hidden = hidden + self._mlp(layer, hidden)
        return self._backend.rms_norm(hidden[rows], self._weights.final_norm, self._config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] → [R, vocab], in float32 or wider."""
        logits = F.linear(hidden, self._weights.lm_head)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _attend(
        self,
        layer: LayerWeights,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: StepAttention,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        config = self._config
        normed = self._backend.rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
        heads = F.linear(normed, layer.qkv).view(len(hidden), -1, config.head_dim)  # [T, H + 2 KVH, D]
        rotated = self._backend.rope(heads[:, : config.num_heads + config.num_kv_heads], cos, sin)
        query, key = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        attention.kv_write(key, heads[:, -config.num_kv_heads :], k_cache, v_cache)
        attended = attention.attend(query, k_cache, v_cache)
        return F.linear(attended.view(len(hidden), -1), layer.output)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        normed = self._backend.rms_norm(hidden, layer.mlp_norm, self._config.rms_norm_eps)
        return F.linear(self._backend.silu_mul(F.linear(normed, layer.gate_up)), layer.down)
