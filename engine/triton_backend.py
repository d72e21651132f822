"""Our own Triton kernels as the engine's backend: on a GPU, or interpreted where there is none.

They keep at most float32. Importing this module imports Triton, which decides then whether kernels are
compiled or interpreted (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention_backend import Weight
from engine.triton_sampler import draw
from kernels.attention_decode import paged_decode
from kernels.attention_prefill import paged_prefill
from kernels.kv_shape import KvShape
from kernels.kv_write import kv_write
from kernels.matmul_quant import matmul_quant
from kernels.quant_layout import QuantizedWeight
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul

MAX_STEP_TOKENS = 65_536


class TritonBackend:
    """The kernels; a dense weight is multiplied by torch."""

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    silu_mul = staticmethod(silu_mul)
    draw = staticmethod(draw)

    def __init__(self, device: torch.device) -> None:
        # Made once: a captured graph reads it where it is.
        self._places = torch.arange(MAX_STEP_TOKENS, device=device)

    def prepare(self, weight: QuantizedWeight, dtype: torch.dtype, max_num_seqs: int) -> Weight:
        return weight

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, QuantizedWeight):
            return matmul_quant(x, weight, bias)
        assert isinstance(weight, Tensor)
        return F.linear(x, weight, bias)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The step's angles were gathered once for all layers: each token's are at its own place."""
        if len(x) > MAX_STEP_TOKENS:
            raise ValueError(f"a step of {len(x)} tokens, {MAX_STEP_TOKENS} at most")
        return rope(x, cos, sin, self._places[: len(x)])

    def plan(
        self,
        block_table: Tensor,  # [S, max_blocks] int32
        slot_mapping: Tensor,  # [T] int64
        cu_query_lens: Sequence[int],  # S + 1
        seq_lens: Sequence[int],  # S
        kv: KvShape,
    ) -> TritonStep:
        lens = torch.tensor([*cu_query_lens, *seq_lens], dtype=torch.int32).to(block_table.device)
        return TritonStep(
            block_table,
            slot_mapping,
            lens[len(cu_query_lens) :],
            kv,
            cu_query_lens=lens[: len(cu_query_lens)],
            query_lens=[end - begin for begin, end in pairwise(cu_query_lens)],
        )

    def plan_decodes(
        self,
        block_table: Tensor,  # [S, max_blocks] int32
        slot_mapping: Tensor,  # [S] int64
        seq_lens: Tensor,  # [S] int32
        kv: KvShape,
    ) -> TritonStep:
        return TritonStep(block_table, slot_mapping, seq_lens, kv)


class TritonStep:
    """Attention of one step: the decodes that stand in front by one kernel, what follows by the other.

    A scheduler puts its decodes first. A chunk of one token among the chunks is a chunk: right either way.
    Owns nothing: caches are passed in layer by layer and written at the step's slots.
    """

    def __init__(
        self,
        block_table: Tensor,  # [S, max_blocks] int32
        slot_mapping: Tensor,  # [T] int64
        seq_lens: Tensor,  # [S] int32
        kv: KvShape,
        *,
        cu_query_lens: Tensor | None = None,  # [S + 1] int32; None: all are decodes
        query_lens: Sequence[int] = (),  # S, as the host knows them
    ) -> None:
        if kv.dtype == torch.float64:
            raise ValueError("the Triton kernels compute in float32 at most, not in float64")
        self._block_table = block_table
        self._slot_mapping = slot_mapping
        self._seq_lens = seq_lens
        self._scale = kv.scale
        self._cu_query_lens = cu_query_lens
        self._num_decodes = len(seq_lens)
        if cu_query_lens is not None:
            self._num_decodes = sum(1 for _ in takewhile(lambda query_len: query_len == 1, query_lens))
        self._max_query_len = max(query_lens[self._num_decodes :], default=0)

    def kv_write(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """Puts key and value [T, KVH, D] into the step's slots."""
        kv_write(key, value, k_cache, v_cache, self._slot_mapping)

    def attend(self, query: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Causal attention of the step's queries [T, H, D]. Returns [T, H, D]."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        decodes = slice(self._num_decodes)
        if self._num_decodes > 0:
            paged_decode(
                query[decodes],
                k_cache,
                v_cache,
                self._block_table[decodes],
                self._seq_lens[decodes],
                self._scale,
                out=out[decodes],
            )
        if self._max_query_len > 0:
            assert self._cu_query_lens is not None
            paged_prefill(
                query,
                k_cache,
                v_cache,
                self._block_table[self._num_decodes :],
                self._cu_query_lens[self._num_decodes :],
                self._seq_lens[self._num_decodes :],
                self._scale,
                max_query_len=self._max_query_len,
                out=out,
            )
        return out
