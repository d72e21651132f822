"""The engine's rows through the fused sampling kernel.

Its tokens are the torch sampler's. Where it says that two candidates are too near to be told apart (a
border within 1e-5 of the number drawn, or of top-p), the row is left to that one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.logits_processing import check_history, check_token_ids
from engine.sampled_row import SampledRow
from engine.sampler import draw_by_torch
from kernels.sample import sample
from kernels.sample_rows import NEAR_TIE, NOT_FINITE, LogitEdits, RowSampling

_MAX_INT32 = 2**31 - 1


def draw(
    logits: Tensor,  # [R, vocab] float32
    rows: Sequence[SampledRow],
) -> list[int | None]:
    """A token id a row; None where the logits are not finite. Raises ValueError for a row that cannot be."""
    edits = edits_of(rows, logits) if any(row.is_processed for row in rows) else None
    sampled = sample(logits, sampling_of(rows, logits.device), edits)
    token_ids, outcomes = torch.stack((sampled.token_ids, sampled.outcomes.long())).tolist()
    drawn: list[int | None] = [
        None if outcome == NOT_FINITE else token_id
        for token_id, outcome in zip(token_ids, outcomes, strict=True)
    ]
    near = [place for place, outcome in enumerate(outcomes) if outcome == NEAR_TIE]
    if near:
        for place, token_id in zip(near, draw_by_torch(logits[near], [rows[i] for i in near]), strict=True):
            drawn[place] = token_id
    return drawn


def sampling_of(rows: Sequence[SampledRow], device: torch.device) -> RowSampling:
    """Two copies to the device, for all the columns. Raises ValueError."""
    params = [row.params for row in rows]
    if any(math.isnan(one.temperature) for one in params):
        raise ValueError("a temperature is no number")
    floats = torch.tensor(
        [
            [one.temperature for one in params],
            [one.top_p for one in params],
            [one.min_p for one in params],
        ],
        dtype=torch.float64,
    ).to(device)
    integers = torch.tensor(
        [
            [_as_signed(one.seed) for one in params],
            [min(one.top_k, _MAX_INT32) for one in params],
            [row.output_index for row in rows],
            [row.sibling for row in rows],
        ],
        dtype=torch.int64,
    ).to(device)
    temperature, top_p, min_p = floats
    top_k, output_index, sibling = integers[1:].int()
    return RowSampling(temperature, top_k, top_p, min_p, integers[0], output_index, sibling)


def edits_of(rows: Sequence[SampledRow], logits: Tensor) -> LogitEdits:
    """Bias and mask as one list; counts of what a row's penalties look at. Raises ValueError."""
    params, device, vocab_size = [row.params for row in rows], logits.device, logits.shape[-1]
    biases = [_biases(row, vocab_size) for row in rows]
    begins = torch.tensor([0, *map(len, biases)]).cumsum(0)
    numbers = torch.tensor(
        [
            [one.repetition_penalty for one in params],
            [one.presence_penalty for one in params],
            [one.frequency_penalty for one in params],
        ],
        dtype=torch.float64,
    ).to(device)
    in_prompt, in_output = _seen_places(rows, vocab_size)
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=device)
    counts.view(-1).index_add_(0, in_output.to(device), torch.ones_like(in_output).int().to(device))
    is_in_prompt = torch.zeros(logits.shape, dtype=torch.bool, device=device)
    is_in_prompt.view(-1)[in_prompt.to(device)] = True
    return LogitEdits(
        bias_begins=begins.int().to(device),
        bias_token_ids=torch.tensor([i for own in biases for i, _ in own], dtype=torch.int32).to(device),
        biases=torch.tensor([bias for own in biases for _, bias in own], dtype=torch.float64).to(device),
        repetition=numbers[0],
        presence=numbers[1],
        frequency=numbers[2],
        output_counts=counts,
        is_in_prompt=is_in_prompt,
    )


def _biases(row: SampledRow, vocab_size: int) -> list[tuple[int, float]]:
    check_token_ids("logit_bias", [token_id for token_id, _ in row.params.logit_bias], vocab_size)
    check_token_ids("masked_token_ids", row.masked_token_ids, vocab_size)
    return [*row.params.logit_bias, *((token_id, -torch.inf) for token_id in row.masked_token_ids)]


def _seen_places(rows: Sequence[SampledRow], vocab_size: int) -> tuple[Tensor, Tensor]:
    """Each token of prompts and of outputs as a place in [R · vocab], for the rows with penalties."""
    in_prompt: list[int] = []
    in_output: list[int] = []
    for place, row in enumerate(rows):
        if not row.params.has_penalties:
            continue
        check_history(row)
        check_token_ids("history", row.history, vocab_size)
        begin = len(row.history) - row.output_index
        in_prompt += [place * vocab_size + token_id for token_id in row.history[:begin]]
        in_output += [place * vocab_size + token_id for token_id in row.history[begin:]]
    return torch.tensor(in_prompt, dtype=torch.int64), torch.tensor(in_output, dtype=torch.int64)


def _as_signed(seed: int) -> int:
    """The bits of a number mod 2^64, as int64 holds them."""
    return (seed + 2**63) % 2**64 - 2**63
