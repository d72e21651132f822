"""A decoder of the Llama family over paged KV: flattened tokens in, hidden states out.

One model for Llama, Mistral, Qwen2 and Qwen3: what a family adds (a bias on Q, K and V; a norm of each
head's Q and K) is there when its weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention_backend import AttentionBackend, QuantizedWeight, StepAttention, Weight
from engine.config import ModelConfig
from engine.loading.stored_weight import StoredWeight
from engine.loading.weights import EMBEDDING, FINAL_NORM, LM_HEAD
from engine.models.weight import Loaded, loaded_weight, stacked
from engine.quantization import Quantization
from engine.rope import rope_tables

Prepare = Callable[[QuantizedWeight], Weight]
"""A backend's choice of the form that it multiplies with."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Projections that read the same input are one matrix, so they are one matmul."""

    input_norm: Tensor  # [hidden]
    qkv: Weight  # [(H + 2 KVH) * D, hidden]
    qkv_bias: Tensor | None  # [(H + 2 KVH) * D]
    query_key_norm: tuple[Tensor, Tensor] | None  # each [D]
    output: Weight  # [hidden, H * D]
    mlp_norm: Tensor  # [hidden]
    gate_up: Weight  # [2 * inner, hidden]
    down: Weight  # [hidden, inner]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    lm_head: Tensor  # [vocab, hidden]; the embedding itself where they are tied


def load_weights(
    config: ModelConfig,
    weights: Iterable[tuple[str, npt.NDArray[Any] | StoredWeight]],
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantization: Quantization = "none",
    prepare: Prepare | None = None,
) -> DecoderWeights:
    """Takes each tensor once, in any order. Peak memory: the result plus one tensor in its own type.

    Without `prepare` what is quantised is multiplied as the dense matrix that it stands for.
    """
    loaded = {
        name: loaded_weight(name, array, quantization, dtype=dtype, device=device) for name, array in weights
    }
    take = _Taker(loaded, dtype, prepare or (lambda weight: weight.dequantize(dtype)))
    embedding = take.dense(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_take_layer(config, take, f"model.layers.{i}.") for i in range(config.num_layers)),
        final_norm=take.dense(FINAL_NORM),
        lm_head=embedding if config.tie_word_embeddings else take.dense(LM_HEAD),
    )


class _Taker:
    """Takes tensors out of `loaded`, those that are named together as one."""

    def __init__(self, loaded: dict[str, Loaded], dtype: torch.dtype, prepare: Prepare) -> None:
        self._loaded = loaded
        self._dtype = dtype
        self._prepare = prepare

    def dense(self, *names: str) -> Tensor:
        weight = self._stacked(names)
        return weight if isinstance(weight, Tensor) else weight.dequantize(self._dtype)

    def matrix(self, *names: str) -> Weight:
        weight = self._stacked(names)
        return weight if isinstance(weight, Tensor) else self._prepare(weight)

    def _stacked(self, names: tuple[str, ...]) -> Loaded:
        return stacked([self._loaded.pop(name) for name in names], self._dtype)


def _take_layer(config: ModelConfig, take: _Taker, layer: str) -> LayerWeights:
    attention, mlp = layer + "self_attn.", layer + "mlp."
    qkv = [f"{attention}{which}_proj." for which in "qkv"]
    norms = [f"{attention}{which}_norm.weight" for which in "qk"] if config.has_query_key_norm else []
    query_key_norm = tuple(take.dense(name) for name in norms)
    return LayerWeights(
        input_norm=take.dense(layer + "input_layernorm.weight"),
        qkv=take.matrix(*(name + "weight" for name in qkv)),
        qkv_bias=take.dense(*(name + "bias" for name in qkv)) if config.has_qkv_bias else None,
        query_key_norm=(query_key_norm[0], query_key_norm[1]) if query_key_norm else None,
        output=take.matrix(attention + "o_proj.weight"),
        mlp_norm=take.dense(layer + "post_attention_layernorm.weight"),
        gate_up=take.matrix(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
        down=take.matrix(mlp + "down_proj.weight"),
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
        update: Tensor | None = None  # what the layer before adds to hidden: summed and normed in one go
        for layer, (k_cache, v_cache) in zip(self._weights.layers, kv_caches, strict=True):
            normed, hidden = self._add_norm(update, hidden, layer.input_norm)
            update = self._attend(layer, normed, cos, sin, attention, k_cache, v_cache)
            normed, hidden = self._add_norm(update, hidden, layer.mlp_norm)
            update = self._mlp(layer, normed)
        return hidden if update is None else hidden + update

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states as `forward` returns them, [R, hidden] → [R, vocab], in float32 or wider."""
        normed = self._norm(hidden, self._weights.final_norm)
        logits = self._backend.linear(normed, self._weights.lm_head)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _attend(
        self,
        layer: LayerWeights,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: StepAttention,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        num_heads, num_kv_heads = self._config.num_heads, self._config.num_kv_heads
        projected = self._backend.linear(normed, layer.qkv, layer.qkv_bias)
        heads = projected.view(len(normed), -1, self._config.head_dim)  # [T, H + 2 KVH, D]
        query_key, value = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
        if layer.query_key_norm is not None:
            query_norm, key_norm = layer.query_key_norm
            query = self._norm(query_key[:, :num_heads], query_norm)
            query_key = torch.cat((query, self._norm(query_key[:, num_heads:], key_norm)), dim=1)
        rotated = self._backend.rope(query_key, cos, sin)
        attention.kv_write(rotated[:, num_heads:], value, k_cache, v_cache)
        attended = attention.attend(rotated[:, :num_heads], k_cache, v_cache)
        return self._backend.linear(attended.view(len(normed), -1), layer.output)

    def _mlp(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        gate_up = self._backend.linear(normed, layer.gate_up)
        return self._backend.linear(self._backend.silu_mul(gate_up), layer.down)

    def _add_norm(self, update: Tensor | None, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of their sum, and the sum."""
        if update is None:
            return self._norm(hidden, weight), hidden
        return self._backend.add_rms_norm(update, hidden, weight, self._config.rms_norm_eps)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._backend.rms_norm(x, weight, self._config.rms_norm_eps)
