"""The executor that computes: one forward pass for a step's decodes and prefill chunks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from engine.attention_backend import KvShape, attention_backend
from engine.config import BLOCK_SIZE, EngineConfig
from engine.executor import Done
from engine.loading.source import ModelSource
from engine.models.llama import LlamaModel, load_llama_weights
from engine.request import SamplingParams
from engine.sampler import SampledRow, sample
from engine.step import ScheduledRequest, StepPlan, StepResult

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchExecutor:
    """Owns the weights and the KV tensors of one model on one device.

    The constructor reads the weights; `allocate_kv` comes before the first `submit`. `dtype` is one of
    `engine.dtype.DTYPE_BYTES`. `num_threads` is set for the whole process.
    """

    def __init__(
        self, source: ModelSource, *, device: str, dtype: str, num_threads: int | None = None
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._config = config = source.config
        self._device = torch.device(device)
        self._dtype = _DTYPES[dtype]
        self._backend = attention_backend(self._device)
        self._kv = KvShape(
            BLOCK_SIZE, config.num_kv_heads, config.head_dim, config.head_dim**-0.5, self._dtype
        )
        self._kv_caches: list[tuple[Tensor, Tensor]] = []
        with torch.inference_mode():
            weights = load_llama_weights(config, source.weights(), dtype=self._dtype, device=self._device)
            self._model = LlamaModel(config, weights, self._backend)

    def allocate_kv(self, num_blocks: int, block_size: int = BLOCK_SIZE) -> None:
        """Takes the memory of `num_blocks` blocks, the null block 0 included."""
        config = self._config
        self._kv = replace(self._kv, block_size=block_size)
        shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)
        # Zeros, not garbage: padding is read with weight 0, and 0 · NaN is NaN.
        self._kv_caches = [
            (
                torch.zeros(shape, dtype=self._dtype, device=self._device),
                torch.zeros(shape, dtype=self._dtype, device=self._device),
            )
            for _ in range(config.num_layers)
        ]

    def warm_up(self, engine: EngineConfig) -> None:
        """One prefill of a full token budget and one full batch of decodes, into the null block.

        What the first step of each kind pays (memory, threads, kernel choice) is paid here.
        """
        length = min(engine.max_num_batched_tokens, engine.max_model_len)
        blocks = (0,) * -(-length // engine.block_size)
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        prefill = ScheduledRequest("warm-up", (0,) * length, 0, blocks, 0, greedy)
        decode = ScheduledRequest("warm-up", (0,), length - 1, blocks, 0, greedy)
        self.submit(StepPlan(0, (prefill,)))
        self.submit(StepPlan(0, (decode,) * engine.max_num_seqs))

    def submit(self, plan: StepPlan) -> Done:
        return Done(StepResult(plan.step, self._execute(plan)))

    @torch.inference_mode()
    def _execute(self, plan: StepPlan) -> tuple[int | None, ...]:
        self._copy_blocks(plan.copies)
        if not plan.scheduled:
            return ()
        batch = _batch(plan.scheduled, self._kv.block_size)
        attention = self._backend.plan(
            batch.block_table.to(self._device),
            batch.slot_mapping.to(self._device),
            batch.cu_query_lens,
            batch.seq_lens,
            self._kv,
        )
        hidden = self._model.forward(
            batch.token_ids.to(self._device),
            batch.positions.to(self._device),
            attention,
            self._kv_caches,
            batch.sampled_tokens.to(self._device),
        )
        return self._sample(plan.scheduled, hidden)

    def _sample(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> tuple[int | None, ...]:
        rows = [
            SampledRow(request.sampling, request.output_index, request.sibling)
            for request in scheduled
            if request.output_index is not None
        ]
        drawn = iter(sample(self._model.logits(hidden), rows) if rows else ())
        return tuple(None if request.output_index is None else next(drawn) for request in scheduled)

    def _copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        if not copies:
            return
        sources, destinations = (list(blocks) for blocks in zip(*copies, strict=True))
        for caches in self._kv_caches:
            for cache in caches:
                cache[destinations] = cache[sources]


@dataclass(frozen=True, slots=True)
class _Batch:
    """A step's requests flattened, in the plan's order, as the contracts' tensors."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    block_table: Tensor  # [S, max_blocks] int32, padded with the null block
    slot_mapping: Tensor  # [T] int64
    cu_query_lens: list[int]  # S + 1
    seq_lens: list[int]  # S
    sampled_tokens: Tensor  # [R] int64: places in [T] whose logits are sampled


def _batch(scheduled: Sequence[ScheduledRequest], block_size: int) -> _Batch:
    query_lens = [request.num_scheduled_tokens for request in scheduled]
    cu_query_lens = [0, *accumulate(query_lens)]
    max_blocks = max(len(request.block_table) for request in scheduled)
    block_table = torch.tensor(
        [request.block_table + (0,) * (max_blocks - len(request.block_table)) for request in scheduled],
        dtype=torch.int32,
    )
    positions = torch.tensor(
        [
            position
            for request, query_len in zip(scheduled, query_lens, strict=True)
            for position in range(request.num_computed_tokens, request.num_computed_tokens + query_len)
        ]
    )
    sequence_of = torch.repeat_interleave(torch.tensor(query_lens))
    block_of = block_table[sequence_of, positions // block_size].long()
    return _Batch(
        token_ids=torch.tensor([token_id for request in scheduled for token_id in request.token_ids]),
        positions=positions,
        block_table=block_table,
        slot_mapping=block_of * block_size + positions % block_size,
        cu_query_lens=cu_query_lens,
        seq_lens=[r.num_computed_tokens + n for r, n in zip(scheduled, query_lens, strict=True)],
        sampled_tokens=torch.tensor(
            [cu_query_lens[i + 1] - 1 for i, r in enumerate(scheduled) if r.output_index is not None],
            dtype=torch.int64,
        ),
    )
