"""From logits to tokens: the same draw for a row whatever else is in the batch.

Order: temperature, top-k, top-p. Candidates stand by (logit descending, id ascending); the first
whose cumulative probability reaches the row's uniform number is taken, in float64.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.philox import uniform
from engine.request import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this take the highest logit."""

_LIST_LENGTHS = (256, 8192)
"""Candidates that are sorted first; a longer list, in the end the whole vocabulary, is sorted only for
a row whose draw lies beyond. Sorting 49,152 logits takes some 40 times as long as finding 256."""


@dataclass(frozen=True, slots=True)
class SampledRow:
    """How row i of the logits is drawn: its parameters and its place in the request's output."""

    params: SamplingParams
    output_index: int
    sibling: int

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW


def sample(
    logits: Tensor,  # [R, vocab] float32 or float64
    rows: Sequence[SampledRow],
) -> list[int]:
    """One token id a row. Raises ValueError if a row's highest logit is not finite."""
    best, best_ids = logits.max(dim=-1)  # of equal ones the lowest id
    if not bool(best.isfinite().all()):
        raise ValueError("the model made logits that are not finite")
    token_ids: list[int] = best_ids.tolist()
    drawn = [i for i, row in enumerate(rows) if not row.is_greedy]
    if drawn:
        picked = _draw(logits[drawn], best[drawn], [rows[i] for i in drawn])
        for i, token_id in zip(drawn, picked, strict=True):
            token_ids[i] = token_id
    return token_ids


def _draw(
    logits: Tensor,  # [R, vocab]
    best: Tensor,  # [R]
    rows: Sequence[SampledRow],
) -> list[int]:
    temperatures = torch.tensor(
        [row.params.temperature for row in rows], dtype=torch.float64, device=logits.device
    )
    # exp((logit - best) / temperature): probabilities up to the row's total, never overflowing.
    weights = ((logits.double() - best.double()[:, None]) / temperatures[:, None]).exp_()
    totals: list[float] = weights.sum(dim=-1).tolist()
    token_ids = _draw_from_best(logits, weights, totals, rows, _LIST_LENGTHS[0])
    return [
        _draw_one(logits[i : i + 1], weights[i : i + 1], totals[i], row) if token_id is None else token_id
        for i, (token_id, row) in enumerate(zip(token_ids, rows, strict=True))
    ]


def _draw_one(logits: Tensor, weights: Tensor, total: float, row: SampledRow) -> int:
    for count in (*_LIST_LENGTHS[1:], logits.shape[-1]):
        (token_id,) = _draw_from_best(logits, weights, [total], [row], count)
        if token_id is not None:
            return token_id
    raise AssertionError("a complete list always holds the draw")


def _draw_from_best(
    logits: Tensor, weights: Tensor, totals: Sequence[float], rows: Sequence[SampledRow], count: int
) -> list[int | None]:
    """A row's token, or None if it is not among the best `count` candidates."""
    vocab_size = logits.shape[-1]
    ids, cumulative, num_exact = _sorted_candidates(logits, weights, min(count, vocab_size))
    token_ids: list[int | None] = []
    for i, row in enumerate(rows):
        index = _pick(cumulative[i][: num_exact[i]], totals[i], num_exact[i] == vocab_size, row)
        token_ids.append(None if index is None else ids[i][index])
    return token_ids


def _sorted_candidates(
    logits: Tensor,  # [R, vocab]
    weights: Tensor,  # [R, vocab] float64
    count: int,
) -> tuple[list[list[int]], list[list[float]], list[int]]:
    """A row: the first `count` ids in order, their cumulative weights, and how many are sure.

    Which of several equal logits `topk` returns at its edge is left open by torch: unless all are
    listed, those equal to the lowest are not sure.
    """
    ids = logits.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    if count == logits.shape[-1]:
        num_exact = [count] * len(logits)
    else:
        num_exact = (values > values[:, -1:]).sum(dim=-1).tolist()
    return ids.tolist(), weights.gather(-1, ids).cumsum(dim=-1).tolist(), num_exact


def _pick(cumulative: Sequence[float], total: float, is_complete: bool, row: SampledRow) -> int | None:
    """Index of the drawn candidate; None if the list is too short to tell.

    `cumulative` are the running sums of the candidates' weights, `total` the sum over the vocabulary.
    """
    num_kept = len(cumulative)
    top_k, top_p = row.params.top_k, row.params.top_p
    if 0 < top_k <= num_kept:
        num_kept, total, is_complete = top_k, cumulative[top_k - 1], True
    elif top_k > 0 and not is_complete:
        return None
    if top_p < 1.0:
        crossing = bisect_left(cumulative, top_p * total, 0, num_kept)
        if crossing < num_kept:
            num_kept, total, is_complete = crossing + 1, cumulative[crossing], True
    drawn = bisect_left(cumulative, _uniform_of(row) * total, 0, num_kept)
    if drawn < num_kept and (is_complete or top_p >= 1.0):
        return drawn
    if not is_complete:
        return None
    # Rounding left the sum below the drawn number: the last candidate that has any weight.
    return bisect_left(cumulative, cumulative[num_kept - 1], 0, num_kept)


def _uniform_of(row: SampledRow) -> float:
    return uniform(row.params.seed, row.output_index, row.sibling)
