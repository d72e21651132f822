"""Which kernels the model runs on: the plain references anywhere, the CPU path on a CPU. Chosen once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels import cpu, reference


@dataclass(frozen=True, slots=True)
class KvShape:
    """What attention needs to know of the cache besides its tensors."""

    block_size: int
    num_kv_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype


class StepAttention(Protocol):
    """Attention of one step's batch, planned once and used by every layer."""

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Puts key and value [T, KVH, D] into the step's slots of the caches [N, KVH, B, D]."""

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Causal attention of query [T, H, D] over each sequence's blocks. Returns [T, H, D]."""


class AttentionBackend(Protocol):
    """The kernels of one device. Shapes and results as in `kernels/reference.py`."""

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
        )


def attention_backend(device: torch.device) -> AttentionBackend:
    return CpuBackend() if device.type == "cpu" else ReferenceBackend()
