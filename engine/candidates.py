"""One token from a row's logits: temperature, top-k, top-p, min-p, and the draw.

Candidates stand by (logit descending, id ascending) and weigh exp((logit - best) / temperature) in
float64; what is kept is a prefix of that order, found in the running sums of the weights. Sorting a
vocabulary is slow, so a short list of the best comes first. It decides where nothing beyond it can
matter; otherwise a longer one does, in the end the complete one: the result is always the complete one's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.request import SamplingParams
from engine.sampled_row import SampledRow

_LIST_LENGTHS = (256, 8192)
"""Candidates that are listed first, and next. Sorting 49,152 logits takes some 40 times as long as
finding 256."""

_TOTAL_ERROR = 1e-5
"""Bounds the relative error of a total in float32: an exponent x is off by about 1e-7 · |x|, and weights
below exp(-20) hardly count. A short list leaves borders nearer than that to a longer one."""


@dataclass(frozen=True, slots=True)
class _CandidateList:
    """A row's best candidates in order, as far as the order is sure."""

    token_ids: list[int]
    cumulative: list[float]
    """Running sums of the weights, of which the first is 1."""
    num_likely: int
    """How many of these min-p keeps."""
    total: float
    """Weight of the whole vocabulary, true within ± `slack`."""
    slack: float
    """0 if the list is complete."""


def draw_candidates(
    logits: Tensor,  # [R, vocab]
    best: Tensor,  # [R]: the highest of each row, finite
    rows: Sequence[SampledRow],
) -> list[int]:
    """A token id a row: the first candidate whose cumulative probability reaches the row's number."""
    totals = _totals(logits, best, rows)
    token_ids = _draw_within(_LIST_LENGTHS[0], logits, best, totals, rows)
    return [
        _draw_alone(logits[i : i + 1], best[i : i + 1], totals[i], row) if token_id is None else token_id
        for i, (token_id, row) in enumerate(zip(token_ids, rows, strict=True))
    ]


def _draw_alone(logits: Tensor, best: Tensor, total: float, row: SampledRow) -> int:
    for length in (*_LIST_LENGTHS[1:], logits.shape[-1]):
        (token_id,) = _draw_within(length, logits, best, [total], [row])
        if token_id is not None:
            return token_id
    raise ArithmeticError("a complete list without a draw")


def _draw_within(
    length: int, logits: Tensor, best: Tensor, totals: Sequence[float], rows: Sequence[SampledRow]
) -> list[int | None]:
    """A row's token, or None if the best `length` candidates cannot tell."""
    lists = _candidate_lists(length, logits, best, totals, rows)
    places = [_pick(candidates, row.params, row.uniform) for candidates, row in zip(lists, rows, strict=True)]
    return [
        None if place is None else candidates.token_ids[place]
        for candidates, place in zip(lists, places, strict=True)
    ]


def _totals(logits: Tensor, best: Tensor, rows: Sequence[SampledRow]) -> list[float]:
    """The weights of each row's vocabulary, true within `_TOTAL_ERROR` and no better: in float32, and torch
    splits a long sum over its threads as it likes. Row by row, for one row fits a core's cache."""
    totals = [
        (values - highest).float().div_(row.params.temperature).exp_().sum(dtype=torch.float64)
        for values, highest, row in zip(logits, best, rows, strict=True)
    ]
    return torch.stack(totals).tolist()


def _candidate_lists(
    length: int, logits: Tensor, best: Tensor, totals: Sequence[float], rows: Sequence[SampledRow]
) -> list[_CandidateList]:
    token_ids, values, num_sure = _sorted_best(logits, length)
    gaps = values.double() - best.double()[:, None]
    weights = (gaps / gaps.new_tensor([[row.params.temperature] for row in rows])).exp_()
    num_likely = (weights >= gaps.new_tensor([[row.params.min_p] for row in rows])).sum(dim=-1)
    columns = (token_ids, weights.cumsum(dim=-1), num_likely)
    is_complete = length >= logits.shape[-1]
    return [
        _CandidateList(
            ids[:sure],
            cumulative[:sure],
            likely,
            total=cumulative[-1] if is_complete else total,
            slack=0.0 if is_complete else total * _TOTAL_ERROR,
        )
        for ids, cumulative, likely, sure, total in zip(
            *(column.tolist() for column in columns), num_sure, totals, strict=True
        )
    ]


def _sorted_best(
    logits: Tensor,  # [R, vocab]
    count: int,
) -> tuple[Tensor, Tensor, list[int]]:
    """A row: ids and values of its `count` best (or all) in order, and how many of these are sure.

    Which of several equal logits `topk` finds is left open by torch: unless all are listed, those equal
    to the lowest are not sure.
    """
    num_rows, vocab_size = logits.shape
    if count >= vocab_size:
        values, token_ids = logits.sort(dim=-1, descending=True, stable=True)
        return token_ids, values, [vocab_size] * num_rows
    found = logits.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = logits.gather(-1, found).sort(dim=-1, descending=True, stable=True)
    return found.gather(-1, order), values, (values > values[:, -1:]).sum(dim=-1).tolist()


def _pick(candidates: _CandidateList, params: SamplingParams, drawn: float) -> int | None:
    """Place of the drawn candidate; None if the list is too short to tell."""
    cumulative, total, slack = candidates.cumulative, candidates.total, candidates.slack
    kept = len(cumulative)
    if 0 < params.top_k <= kept:
        kept, total, slack = params.top_k, cumulative[params.top_k - 1], 0.0
    elif params.top_k > 0 and slack > 0:
        return None
    if params.top_p < 1.0:
        crossing = _first_reaching(params.top_p * total, slack, cumulative, kept)
        if crossing is None:
            return None
        kept = min(kept, crossing + 1)
    kept = min(kept, candidates.num_likely)
    if kept < len(cumulative):  # all that is kept is listed
        total, slack = cumulative[kept - 1], 0.0
    elif slack > 0 and (params.top_p < 1.0 or params.min_p > 0.0):
        return None
    place = _first_reaching(drawn * total, slack, cumulative, kept)
    return None if place is None or place == kept else place


def _first_reaching(threshold: float, slack: float, cumulative: Sequence[float], kept: int) -> int | None:
    """The first of `kept` places whose running sum reaches the threshold, else `kept`; None if within
    `slack` of the threshold there is a border."""
    place = bisect_left(cumulative, threshold - slack, 0, kept)
    return place if place == bisect_left(cumulative, threshold + slack, 0, kept) else None
