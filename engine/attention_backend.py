"""Which kernels the model runs on, chosen once: our Triton kernels on a CUDA GPU, the CPU path on a CPU, the
plain references elsewhere, and in reference mode those whose rows do not depend on the batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from engine.config import BackendName, ModelConfig
from engine.sampler import DrawTokens
from kernels import cpu, cpu_quant, deterministic, reference
from kernels import quant_layout as quant_layout
from kernels.cpu_quant import CpuWeight
from kernels.cuda_graph import cuda_capture as cuda_capture
from kernels.kv_shape import KvShape as KvShape  # the engine's other files have these from here
from kernels.quant_layout import QuantizedWeight as QuantizedWeight

Weight = QuantizedWeight | CpuWeight
"""What `linear` multiplies by: a dense matrix, a quantised one, or that in a form of the CPU path."""


class StepAttention(Protocol):
    """Attention of one step's batch, planned once and used by every layer."""

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Puts key and value [T, KVH, D] into the step's slots of the caches [N, KVH, B, D]."""

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Causal attention of query [T, H, D] over each sequence's blocks. Returns [T, H, D]."""


PlanDecodes = Callable[[Tensor, Tensor, Tensor, KvShape], StepAttention]
"""Of a step with one query a sequence, told by tensors alone so that a CUDA graph may hold it: block table
[S, max_blocks] int32, slot mapping [S] int64, sequence lengths [S] int32; 0 is a row of padding."""


class AttentionBackend(Protocol):
    """The kernels of one device: all that the model computes with. Results as `kernels/reference.py`."""

    @property
    def plan_decodes(self) -> PlanDecodes | None:
        """None: steps are planned on the host only."""

    @property
    def draw(self) -> DrawTokens | None:
        """From logits to tokens; None: by torch."""

    def prepare(self, weight: QuantizedWeight, dtype: torch.dtype, max_num_seqs: int) -> Weight:
        """The form that `linear` takes, chosen once, for so many decodes at most in a step."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The norm of x + residual, and the sum."""

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


class _TorchBackend:
    """What backends without kernels of their own share."""

    plan_decodes: ClassVar[None] = None
    draw: ClassVar[None] = None
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]

    def prepare(self, weight: QuantizedWeight, dtype: torch.dtype, max_num_seqs: int) -> Weight:
        return weight.dequantize(dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + x
        return self.rms_norm(total, weight, eps), total


class ReferenceBackend(_TorchBackend):
    """Device-free and slow: runs wherever torch does."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        return reference.linear(x, _dense(weight, x.dtype), bias)

    rms_norm = staticmethod(reference.rms_norm)
    rope = staticmethod(reference.rope)
    silu_mul = staticmethod(reference.silu_mul)
    plan = reference.PagedStep


class CpuBackend(_TorchBackend):
    """The CPU path of `kernels/cpu.py`."""

    def prepare(self, weight: QuantizedWeight, dtype: torch.dtype, max_num_seqs: int) -> Weight:
        return cpu_quant.prepared(weight, dtype, max_num_seqs)

    linear = staticmethod(cpu_quant.linear)
    rms_norm = staticmethod(cpu.rms_norm)
    rope = staticmethod(cpu.rope)
    silu_mul = staticmethod(cpu.silu_mul)
    plan = cpu.PagedStep


class DeterministicBackend(_TorchBackend):
    """Reference mode: `kernels/deterministic.py`, and the references that are as independent of the batch."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        return deterministic.linear(x, _dense(weight, x.dtype), bias)

    rms_norm = staticmethod(reference.rms_norm)
    rope = staticmethod(reference.rope)
    silu_mul = staticmethod(deterministic.silu_mul)
    plan = deterministic.PagedStep


def _dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    if isinstance(weight, QuantizedWeight):
        return weight.dequantize(dtype)
    if isinstance(weight, Tensor):
        return weight
    raise TypeError(f"{type(weight).__name__} is a form of the CPU path")


def attention_backend(
    device: torch.device, name: BackendName = "auto", *, is_deterministic: bool = False
) -> AttentionBackend:
    """Raises ValueError for a name that cannot be there. Triton is imported when its kernels are chosen."""
    if is_deterministic:
        if name != "auto":
            raise ValueError(f"reference mode has kernels of its own, not those of {name!r}")
        return DeterministicBackend()
    if name == "auto":
        name = _NAME_BY_DEVICE.get(device.type, "reference")
    if name == "triton":
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(f"Triton's kernels need a CUDA GPU, not {device.type}, or TRITON_INTERPRET=1")
        from engine.triton_backend import TritonBackend

        return TritonBackend(device)
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the CPU path does not run on {device.type}")
    return CpuBackend() if name == "cpu" else ReferenceBackend()


_NAME_BY_DEVICE: dict[str, BackendName] = {"cuda": "triton", "cpu": "cpu"}


def kv_shape(
    config: ModelConfig, block_size: int, dtype: torch.dtype, cache_dtype: torch.dtype | None = None
) -> KvShape:
    """Of a model's cache; stored as `dtype` unless `cache_dtype` says otherwise."""
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    return KvShape(block_size, *heads, dtype, cache_dtype or dtype)
