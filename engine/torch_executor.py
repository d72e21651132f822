"""The executor that computes: one forward pass for a step's decodes and prefill chunks together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from engine.attention_backend import attention_backend, cuda_capture, kv_shape
from engine.config import BLOCK_SIZE, BackendName, EngineConfig
from engine.cuda_graphs import Capture, DecodeInputs, PaddedDecodes
from engine.executor import Done
from engine.kv_cache import KvCache
from engine.loading.source import ModelSource
from engine.models.decoder import Decoder, load_weights
from engine.peak_memory import peak_bytes
from engine.quantization import Quantization, check_quantization
from engine.request import SamplingParams
from engine.sampler import NON_FINITE_LOGITS, Draw, SampledRow, sample
from engine.step import SampledToken, ScheduledRequest, StepPlan, StepResult
from engine.step_tensors import StepTensors, step_tensors
from engine.warm_up import heaviest_steps

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}

MANY_SEQS = 32
"""Decodes at once, of an executor that is not told."""


class TorchExecutor:
    """Owns the weights and the KV cache of one model on one device.

    The constructor reads the weights; `allocate_kv` comes before the first `submit`. `dtype` and
    `kv_dtype` (default: `dtype`) are of `engine.dtype.DTYPE_BYTES`. `num_threads` is set for the whole
    process; `deterministic` (reference mode) computes on one thread whatever it says. Positions go up to
    `max_model_len` (default: the trained context). `backend` names the kernels. Steps of decodes alone are
    padded and captured from the warm-up on, if there is a `capture`; on a GPU it is that of CUDA graphs.
    Raises ValueError for kernels that cannot be there. Quantised weights take the form that suits
    `max_num_seqs` decodes at once; a `quantization` that the model cannot have raises ModelError.
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
        backend: BackendName = "auto",
        capture: Capture | None = None,
        quantization: Quantization = "none",
        max_num_seqs: int = MANY_SEQS,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        config = replace(source.config, max_model_len=max_model_len or source.config.max_model_len)
        self._config = config
        self._device = torch.device(device)
        self._dtype, self._kv_dtype = _DTYPES[dtype], _DTYPES[kv_dtype or dtype]
        self._is_deterministic = deterministic
        self._backend = attention_backend(self._device, backend, is_deterministic=deterministic)
        if capture is None and self._device.type == "cuda":
            capture = cuda_capture(self._device)
        self._capture = capture
        self._decodes: PaddedDecodes | None = None
        check_quantization(quantization, source)
        arrays = source.weights(as_stored=True) if quantization == "stored" else source.weights()
        with torch.inference_mode():
            weights = load_weights(
                config,
                arrays,
                dtype=self._dtype,
                device=self._device,
                quantization=quantization,
                prepare=lambda weight: self._backend.prepare(weight, self._dtype, max_num_seqs),
            )
            self._model = Decoder(config, weights, self._backend)

    def allocate_kv(self, num_blocks: int, block_size: int = BLOCK_SIZE) -> None:
        """Takes the memory of `num_blocks` blocks, the null block 0 included."""
        shape = kv_shape(self._config, block_size, self._dtype, self._kv_dtype)
        self._kv = KvCache(self._config.num_layers, num_blocks, shape, self._device)
        self._decodes = None  # captured on the caches of before

    def warm_up(self, engine: EngineConfig) -> int | None:
        """The heaviest steps, into the null block; the bytes they took at their height, where that is told.

        What the first step of each kind pays (memory, threads, kernel choice) is paid here.
        """
        steps = heaviest_steps(engine)

        def work() -> None:
            for plan in steps:
                self.submit(plan)
            self.capture_decodes(engine)

        peak = peak_bytes(work, self._device)
        self._kv.clear()
        return peak

    @torch.inference_mode()
    def capture_decodes(self, engine: EngineConfig) -> None:
        """Of every size, where the kernels can be captured and there is something to do it."""
        plan_decodes = self._backend.plan_decodes
        if plan_decodes is None or self._capture is None:
            return

        def forward(inputs: DecodeInputs) -> Tensor:
            attention = plan_decodes(inputs.block_table, inputs.slot_mapping, inputs.seq_lens, self._kv.shape)
            return self._model.forward(inputs.token_ids, inputs.positions, attention, self._kv.layers)

        self._decodes = PaddedDecodes(
            forward,
            max_num_seqs=engine.max_num_seqs,
            max_blocks=-(-engine.max_model_len // engine.block_size),
            device=self._device,
            capture=self._capture,
        )
        self._decodes.capture_all()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """[T, vocab] of one sequence, computed at once into the first blocks: to judge a model by."""
        num_blocks = -(-len(token_ids) // self._kv.shape.block_size)
        blocks = tuple(range(1, num_blocks + 1))
        whole = ScheduledRequest("logits", tuple(token_ids), 0, blocks, None, SamplingParams(max_tokens=1))
        return self._model.logits(
            self._forward(step_tensors((whole,), self._kv.shape.block_size, self._device))
        )

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
        if self._decodes is not None and self._decodes.covers(tensors):
            return self._decodes.run(tensors)
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
        rows = [one for row in tensors.sampled_rows for one in _rows(scheduled[row])]
        drawn = iter(sample(logits, rows, self._backend.draw))
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
