"""Which kernels the model runs on, chosen once: the CPU path on a CPU, the plain references elsewhere,
and in reference mode those whose rows do not depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.config import ModelConfig
from kernels import cpu, deterministic, reference
from kernels.kv_shape import KvShape as KvShape  # the engine's other files have it from here


class StepAttention(Protocol):
    """Attention of one step's batch, planned once and used by every layer."""

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Puts key and value [T, KVH, D] into the step's slots of the caches [N, KVH, B, D]."""

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Causal attention of query [T, H, D] over each sequence's blocks. Returns [T, H, D]."""


class AttentionBackend(Protocol):
    """The kernels of one device: all that the model computes with. Results as `kernels/reference.py`."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def plan(
        self,
        block_table: Tensor,  # [S, max_blocks] int32
        slot_mapping: Tensor,  # [T] int64
        cu_query_lens: Sequence[int],  # S + 1
        seq_lens: Sequence[int],  # S
        kv: KvShape,
    ) -> StepAttention: ...


class ReferenceBackend:
    """Device-free and slow: runs wherever torch does."""

    linear = staticmethod(reference.linear)
    rms_norm = staticmethod(reference.rms_norm)
    rope = staticmethod(reference.rope)
    silu_mul = staticmethod(reference.silu_mul)
    plan = reference.PagedStep


class CpuBackend:
    """The CPU path of `kernels/cpu.py`."""

    linear = staticmethod(cpu.linear)
    rms_norm = staticmethod(cpu.rms_norm)
    rope = staticmethod(cpu.rope)
    silu_mul = staticmethod(cpu.silu_mul)
    plan = cpu.PagedStep


class DeterministicBackend:
    """Reference mode: `kernels/deterministic.py`, and the references that are as independent of the batch."""

    linear = staticmethod(deterministic.linear)
    rms_norm = staticmethod(reference.rms_norm)
    rope = staticmethod(reference.rope)
    silu_mul = staticmethod(deterministic.silu_mul)
    plan = deterministic.PagedStep


def attention_backend(device: torch.device, *, is_deterministic: bool = False) -> AttentionBackend:
    if is_deterministic:
        return DeterministicBackend()
    return CpuBackend() if device.type == "cpu" else ReferenceBackend()


def kv_shape(
    config: ModelConfig, block_size: int, dtype: torch.dtype, cache_dtype: torch.dtype | None = None
) -> KvShape:
    """Of a model's cache; stored as `dtype` unless `cache_dtype` says otherwise."""
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    return KvShape(block_size, *heads, dtype, cache_dtype or dtype)
