"""The plain version of `sample.py`: `reference_sampling.py` row by row, the number drawn, and what is near.

A near tie is a border between two candidates within 1e-5 of the number that a cumulative probability is
compared with: of top-p among what top-k kept, and of the number drawn among what all three kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference_sampling import candidates, process_logits, sample_token
from kernels.sample_rows import DRAWN, NEAR_TIE, NOT_FINITE, LogitEdits, RowSampling, Sampled

MARGIN = 1e-5
_MASK = 0xFFFFFFFF


def sample(
    logits: Tensor,  # [R, V]
    sampling: RowSampling,
    edits: LogitEdits | None = None,
) -> Sampled:
    drawn = []
    for row, values in enumerate(logits):
        edited = values.double() if edits is None else _edited(values, edits, row)
        drawn.append(_sample_row(edited, sampling, row))
    token_ids, outcomes = zip(*drawn, strict=True)
    return Sampled(torch.tensor(token_ids), torch.tensor(outcomes, dtype=torch.int8))


def uniform(seed: int, output_index: int, sibling: int) -> float:
    """Philox4x32-10 (Salmon et al., 2011): key (seed), counter (output index, sibling, 0, 0)."""
    a, b, c, d = output_index & _MASK, sibling & _MASK, 0, 0
    key_a, key_b = seed & _MASK, seed >> 32 & _MASK
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (right >> 32) ^ b ^ key_a, right & _MASK, (left >> 32) ^ d ^ key_b, left & _MASK
        key_a, key_b = key_a + 0x9E3779B9 & _MASK, key_b + 0xBB67AE85 & _MASK
    return (a >> 8) / 2**24


def _sample_row(values: Tensor, sampling: RowSampling, row: int) -> tuple[int, int]:
    """Token and outcome."""
    if not values.max().isfinite():  # of NaN and anything, torch's maximum is NaN
        return 0, NOT_FINITE
    temperature, top_p = sampling.temperature[row].item(), sampling.top_p[row].item()
    top_k, min_p = int(sampling.top_k[row]), sampling.min_p[row].item()
    drawn = uniform(int(sampling.seed[row]), int(sampling.output_index[row]), int(sampling.sibling[row]))
    _, top = candidates(values, temperature=temperature, top_k=top_k)
    _, kept = candidates(values, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    is_near = _has_border(kept, drawn) or (top_p < 1.0 and _has_border(top, top_p))
    token_id = sample_token(
        values, drawn=drawn, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    return token_id, NEAR_TIE if is_near else DRAWN


def _has_border(weights: Tensor, number: float) -> bool:
    cumulative = weights.cumsum(dim=0)
    borders = cumulative[:-1] / cumulative[-1]
    return bool(((borders - number).abs() < MARGIN).any())


def _edited(values: Tensor, edits: LogitEdits, row: int) -> Tensor:
    """A mask is a bias of -inf: whatever is then done to it, it stays."""
    begin, end = edits.bias_begins[row : row + 2].tolist()
    token_ids, biases = edits.bias_token_ids[begin:end].tolist(), edits.biases[begin:end].tolist()
    ids = torch.arange(len(values), device=values.device)
    return process_logits(
        values,
        logit_bias=list(zip(token_ids, biases, strict=True)),
        prompt_token_ids=ids[edits.is_in_prompt[row]].tolist(),
        output_token_ids=ids.repeat_interleave(edits.output_counts[row]).tolist(),
        repetition_penalty=edits.repetition[row].item(),
        presence_penalty=edits.presence[row].item(),
        frequency_penalty=edits.frequency[row].item(),
    )
