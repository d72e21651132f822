"""The executor that computes: one forward pass for a step's decodes and prefill chunks together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from engine.attention_backend import attention_backend, kv_shape
from engine.config import BLOCK_SIZE, EngineConfig
from engine.executor import Done
from engine.kv_cache import KvCache
from engine.loading.source import ModelSource
from engine.models.decoder import Decoder, load_weights
from engine.peak_memory import peak_bytes
from engine.sampler import NON_FINITE_LOGITS, Draw, SampledRow, sample
from engine.step import SampledToken, ScheduledRequest, StepPlan, StepResult
from engine.step_tensors import StepTensors, step_tensors
from engine.warm_up import heaviest_steps

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchExecutor:
    """Owns the weights and the KV cache of one model on one device.

    The constructor reads the weights; `allocate_kv` comes before the first `submit`. `dtype` and
    `kv_dtype` (default: `dtype`) are of `engine.dtype.DTYPE_BYTES`. `num_threads` is set for the whole
    process; `deterministic` (reference mode) computes on one thread whatever it says. Positions go up to
    `max_model_len` (default: the trained context).
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        device: str,
        dtype: str,
        kv_dtype: str | None = None,
        deterministic: bool = False,
        num_threads: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        config = replace(source.config, max_model_len=max_model_len or source.config.max_model_len)
        self._config = config
        self._device = torch.device(device)
        self._dtype, self._kv_dtype = _DTYPES[dtype], _DTYPES[kv_dtype or dtype]
        self._is_deterministic = deterministic
        self._backend = attention_backend(self._device, is_deterministic=deterministic)
        with torch.inference_mode():
            weights = load_weights(config, source.weights(), dtype=self._dtype, device=self._device)
            self._model = Decoder(config, weights, self._backend)

    def allocate_kv(self, num_blocks: int, block_size: int = BLOCK_SIZE) -> None:
        """Takes the memory of `num_blocks` blocks, the null block 0 included."""
        shape = kv_shape(self._config, block_size, self._dtype, self._kv_dtype)
        self._kv = KvCache(self._config.num_layers, num_blocks, shape, self._device)

    def warm_up(self, engine: EngineConfig) -> int | None:
        """The heaviest steps, into the null block; the bytes they took at their height, where that is told.

        What the first step of each kind pays (memory, threads, kernel choice) is paid here.
        """
        steps = heaviest_steps(engine)
        peak = peak_bytes(lambda: [self.submit(plan) for plan in steps], self._device)
        self._kv.clear()
        return peak

    def submit(self, plan: StepPlan) -> Done:
        return Done(self._execute(plan))

    def reset(self) -> None:
        self._kv.clear()

    @torch.inference_mode()
    def _execute(self, plan: StepPlan) -> StepResult:
        self._kv.copy_blocks(plan.copies)
        if not plan.scheduled:
            return StepResult(plan.step, ())
        if self._is_deterministic:
            # Said in every step, for torch keeps it thread by thread: a matmul's bits follow its threads.
            torch.set_num_threads(1)
        tensors = step_tensors(plan.scheduled, self._kv.shape.block_size, self._device)
        hidden = self._forward(tensors)
        poisoned = self._clear_poisoned(tensors, hidden)
        return _result(plan, self._sample(plan.scheduled, tensors, hidden), poisoned)

    def _forward(self, tensors: StepTensors) -> Tensor:
        attention = self._backend.plan(
            tensors.block_table,
            tensors.slot_mapping,
            tensors.cu_query_lens,
            tensors.seq_lens,
            self._kv.shape,
        )
        return self._model.forward(tensors.token_ids, tensors.positions, attention, self._kv.layers)

    def _clear_poisoned(self, tensors: StepTensors, hidden: Tensor) -> list[int]:
        """The rows with a token that is not finite. What they wrote is zeroed: it may be read as padding."""
        is_finite = hidden.isfinite().all(dim=-1)
        if bool(is_finite.all()):
            return []
        poisoned = torch.unique(tensors.rows[~is_finite])
        self._kv.clear_slots(tensors.slot_mapping[torch.isin(tensors.rows, poisoned)])
        rows: list[int] = poisoned.tolist()
        return rows

    def _sample(
        self, scheduled: Sequence[ScheduledRequest], tensors: StepTensors, hidden: Tensor
    ) -> dict[int, list[Draw]]:
        """The draws of the rows that are sampled: one a sibling, all from the row's one line of logits."""
        if not tensors.sampled_rows:
            return {}
        counts = [scheduled[row].n for row in tensors.sampled_rows]
        logits = self._model.logits(hidden[tensors.sampled_tokens])
        if max(counts) > 1:
            logits = logits.repeat_interleave(torch.tensor(counts, device=logits.device), dim=0)
        drawn = iter(sample(logits, [one for row in tensors.sampled_rows for one in _rows(scheduled[row])]))
        return {
            row: list(islice(drawn, count)) for row, count in zip(tensors.sampled_rows, counts, strict=True)
        }


def _rows(request: ScheduledRequest) -> list[SampledRow]:
    assert request.output_index is not None
    return [
        SampledRow(request.sampling, request.output_index, sibling, request.history, request.masked_token_ids)
        for sibling in range(request.sibling, request.sibling + request.n)
    ]


def _result(plan: StepPlan, draws: dict[int, list[Draw]], poisoned: Collection[int]) -> StepResult:
    errors = {row: draw.error for row, drawn in draws.items() for draw in drawn if draw.error is not None}
    errors |= dict.fromkeys(poisoned, NON_FINITE_LOGITS)
    sampled = {row: _tokens(drawn) for row, drawn in draws.items() if row not in errors}
    first = {row: tokens[0] for row, tokens in sampled.items()}
    return StepResult(
        plan.step,
        tuple(first[row].token_id if row in first else None for row in range(len(plan.scheduled))),
        {row: token.logprobs for row, token in first.items() if token.logprobs is not None},
        errors,
        {row: tokens[1:] for row, tokens in sampled.items() if len(tokens) > 1},
    )


def _tokens(draws: Sequence[Draw]) -> tuple[SampledToken, ...]:
    return tuple(SampledToken(draw.token_id, draw.logprobs) for draw in draws if draw.token_id is not None)
