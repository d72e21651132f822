"""A decoder of the Llama family over paged KV: flattened tokens in, hidden states out.

One model for Llama, Mistral, Qwen2 and Qwen3: what a family adds (a bias on Q, K and V; a norm of each
head's Q and K) is there when its weights are.
"""

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
    qkv_bias: Tensor | None  # [(H + 2 KVH) * D]
    query_key_norm: tuple[Tensor, Tensor] | None  # each [D]
    output: Tensor  # [hidden, H * D]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * inner, hidden]
    down: Tensor  # [hidden, inner]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    lm_head: Tensor  # [vocab, hidden]; the embedding itself where they are tied


def load_weights(
    config: ModelConfig,
    weights: Iterable[tuple[str, npt.NDArray[Any]]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> DecoderWeights:
    """Takes each tensor once, in any order. Peak memory: the result plus one tensor in its own type."""
    loaded = {name: torch.tensor(array, dtype=dtype, device=device) for name, array in weights}
    embedding = loaded.pop(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_take_layer(config, loaded, layer) for layer in range(config.num_layers)),
        final_norm=loaded.pop(FINAL_NORM),
        lm_head=embedding if config.tie_word_embeddings else loaded.pop(LM_HEAD),
    )


def _take_layer(config: ModelConfig, loaded: dict[str, Tensor], layer: int) -> LayerWeights:
    def take(*names: str) -> Tensor:
        parts = [loaded.pop(f"model.layers.{layer}.{name}") for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def take_qkv(kind: str) -> Tensor:
        return take(*(f"self_attn.{which}_proj.{kind}" for which in "qkv"))

    def take_norms() -> tuple[Tensor, Tensor]:
        return take("self_attn.q_norm.weight"), take("self_attn.k_norm.weight")

    return LayerWeights(
        input_norm=take("input_layernorm.weight"),
        qkv=take_qkv("weight"),
        qkv_bias=take_qkv("bias") if config.has_qkv_bias else None,
        query_key_norm=take_norms() if config.has_query_key_norm else None,
        output=take("self_attn.o_proj.weight"),
        mlp_norm=take("post_attention_layernorm.weight"),
        gate_up=take("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        down=take("mlp.down_proj.weight"),
    )


class Decoder:
    """Weights and RoPE tables; holds no request and no KV of its own."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, backend: AttentionBackend) -> None:
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
    ) -> Tensor:
        """Writes the tokens' K and V into the caches. Returns hidden [T, hidden], before the last norm."""
        hidden = F.embedding(token_ids, self._weights.embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        for layer, (k_cache, v_cache) in zip(self._weights.layers, kv_caches, strict=True):
            hidden = hidden + self._attend(layer, hidden, cos, sin, attention, k_cache, v_cache)
            hidden = hidden + self._mlp(layer, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states as `forward` returns them, [R, hidden] → [R, vocab], in float32 or wider."""
        normed = self._norm(hidden, self._weights.final_norm)
        logits = self._backend.linear(normed, self._weights.lm_head)
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
        num_heads, num_kv_heads = self._config.num_heads, self._config.num_kv_heads
        normed = self._norm(hidden, layer.input_norm)
        projected = self._backend.linear(normed, layer.qkv, layer.qkv_bias)
        heads = projected.view(len(hidden), -1, self._config.head_dim)  # [T, H + 2 KVH, D]
        query_key, value = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
        if layer.query_key_norm is not None:
            query_norm, key_norm = layer.query_key_norm
            query = self._norm(query_key[:, :num_heads], query_norm)
            query_key = torch.cat((query, self._norm(query_key[:, num_heads:], key_norm)), dim=1)
        rotated = self._backend.rope(query_key, cos, sin)
        attention.kv_write(rotated[:, num_heads:], value, k_cache, v_cache)
        attended = attention.attend(rotated[:, :num_heads], k_cache, v_cache)
        return self._backend.linear(attended.view(len(hidden), -1), layer.output)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate_up = self._backend.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up)
        return self._backend.linear(self._backend.silu_mul(gate_up), layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._backend.rms_norm(x, weight, self._config.rms_norm_eps)
