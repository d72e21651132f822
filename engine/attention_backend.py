"""Which kernels the model runs on, chosen once: the CPU path on a CPU, the plain references elsewhere,
and in reference mode those whose rows do not depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.config import ModelConfig
from kernels import cpu, deterministic, reference


@dataclass(frozen=True, slots=True)
class KvShape:
    """What attention needs to know of the cache besides its tensors."""

    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    """Of what attention computes with."""
    cache_dtype: torch.dtype
    """Of what is stored: written rounded, read widened."""

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        block_size: int,
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
    ) -> KvShape:
        return cls(
            block_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.head_dim**-0.5,
            dtype,
            cache_dtype or dtype,
        )


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

    def plan(
        self,
        block_table: Tensor,
        slot_mapping: Tensor,
        cu_query_lens: Sequence[int],
        seq_lens: Sequence[int],
        kv: KvShape,
    ) -> StepAttention:
        int32 = torch.int32
        return _ReferenceStep(
            block_table,
            slot_mapping,
            torch.tensor(cu_query_lens, dtype=int32),
            torch.tensor(seq_lens, dtype=int32),
            kv,
        )


class _ReferenceStep:
    def __init__(
        self, block_table: Tensor, slot_mapping: Tensor, cu_query_lens: Tensor, seq_lens: Tensor, kv: KvShape
    ) -> None:
        self._block_table = block_table
        self._slot_mapping = slot_mapping
        self._cu_query_lens = cu_query_lens
        self._seq_lens = seq_lens
        self._scale = kv.scale

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        reference.kv_write(key, value, k_cache, v_cache, self._slot_mapping)

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        return reference.paged_attention(
            query, k_cache, v_cache, self._block_table, self._cu_query_lens, self._seq_lens, self._scale
        )


class CpuBackend:
    """The CPU path of `kernels/cpu.py`."""

    linear = staticmethod(cpu.linear)
    rms_norm = staticmethod(cpu.rms_norm)
    rope = staticmethod(cpu.rope)
    silu_mul = staticmethod(cpu.silu_mul)

    def plan(
        self,
        block_table: Tensor,
        slot_mapping: Tensor,
        cu_query_lens: Sequence[int],
        seq_lens: Sequence[int],
        kv: KvShape,
    ) -> StepAttention:
        return cpu.PagedStep(
            block_table,
            slot_mapping,
            cu_query_lens,
            seq_lens,
            block_size=kv.block_size,
            num_kv_heads=kv.num_kv_heads,
            head_dim=kv.head_dim,
            scale=kv.scale,
            dtype=kv.dtype,
            cache_dtype=kv.cache_dtype,
        )


class DeterministicBackend:
    """Reference mode: `kernels/deterministic.py`, and the references that are as independent of the batch."""

    linear = staticmethod(deterministic.linear)
    rms_norm = staticmethod(reference.rms_norm)
    rope = staticmethod(reference.rope)
    silu_mul = staticmethod(deterministic.silu_mul)

    def plan(
        self,
        block_table: Tensor,
        slot_mapping: Tensor,
        cu_query_lens: Sequence[int],
        seq_lens: Sequence[int],
        kv: KvShape,
    ) -> StepAttention:
        # Said in every step, for torch keeps it thread by thread: a matmul's bits follow its threads.
        torch.set_num_threads(1)
        return deterministic.PagedStep(
            block_table,
            slot_mapping,
            cu_query_lens,
            seq_lens,
            block_size=kv.block_size,
            num_heads=kv.num_heads,
            num_kv_heads=kv.num_kv_heads,
            scale=kv.scale,
        )


def attention_backend(device: torch.device, *, is_deterministic: bool = False) -> AttentionBackend:
    if is_deterministic:
        return DeterministicBackend()
    return CpuBackend() if device.type == "cpu" else ReferenceBackend()
