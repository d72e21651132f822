"""From logits to tokens: the same draw for a row whatever else is in the batch.

Order: bias, penalties, mask, temperature, top-k, top-p, min-p; the draw, by torch or by a device's kernel,
equals `kernels/reference_sampling.py` token for token. Logprobs are of the logits as the model made them.
A row's fault is that row's error and leaves its neighbours as they would be without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from engine.candidates import draw_candidates
from engine.logits_processing import process_logits
from engine.logprobs import token_logprobs
from engine.request import TokenLogprobs
from engine.sampled_row import SampledRow

__all__ = [
    "NON_FINITE_LOGITS",
    "SAMPLER_ERROR",
    "Draw",
    "DrawTokens",
    "SampledRow",
    "draw_by_torch",
    "sample",
]

log = logging.getLogger(__name__)

NON_FINITE_LOGITS = "non_finite_logits"
"""Error code: a NaN, a +inf or nothing but -inf, from the model or after bias, penalties and mask."""

SAMPLER_ERROR = "sampler_error"
"""Error code: sampling the row raised."""

DrawTokens = Callable[[Tensor, Sequence[SampledRow]], list[int | None]]
"""Logits [R, vocab] and their rows → a token id a row; None where the logits are not finite. May raise."""


class Draw(NamedTuple):
    """What came of one row: a token, or an error code."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    error: str | None = None


def sample(
    logits: Tensor,  # [R, vocab] float32 or float64, left as it is
    rows: Sequence[SampledRow],
    draw_tokens: DrawTokens | None = None,
) -> list[Draw]:
    """One draw a row, by torch unless told otherwise. Never raises: where a batch fails, each row is sampled
    alone, and only what still fails is an error."""
    try:
        return _sample_together(logits, rows, draw_tokens or draw_by_torch)
    except Exception:
        log.exception("sampling failed in a batch of %d", len(rows))
    if len(rows) == 1:
        return [Draw(None, error=SAMPLER_ERROR)]
    return [draw for i, row in enumerate(rows) for draw in sample(logits[i : i + 1], [row], draw_tokens)]


def _sample_together(logits: Tensor, rows: Sequence[SampledRow], draw_tokens: DrawTokens) -> list[Draw]:
    token_ids: dict[int, int | None] = {}
    for is_processed in (False, True):
        places = [i for i, row in enumerate(rows) if row.is_processed is is_processed]
        if places:
            drawn = draw_tokens(_rows_of(logits, places), [rows[i] for i in places])
            token_ids.update(zip(places, drawn, strict=True))
    logprobs = _logprobs(logits, rows, token_ids)
    return [
        Draw(None, error=NON_FINITE_LOGITS) if token_id is None else Draw(token_id, logprobs.get(i))
        for i, token_id in sorted(token_ids.items())
    ]


def draw_by_torch(logits: Tensor, rows: Sequence[SampledRow]) -> list[int | None]:
    """The `DrawTokens` of every device."""
    if any(row.is_processed for row in rows):
        logits = process_logits(logits, rows)
    best, best_ids = logits.max(dim=-1)  # of equal ones the lowest id; NaN is above +inf
    token_ids: list[int | None] = [
        token_id if is_finite else None
        for token_id, is_finite in zip(best_ids.tolist(), best.isfinite().tolist(), strict=True)
    ]
    places = [i for i, row in enumerate(rows) if not row.is_greedy and token_ids[i] is not None]
    if places:
        drawn = draw_candidates(_rows_of(logits, places), best[places], [rows[i] for i in places])
        for i, token_id in zip(places, drawn, strict=True):
            token_ids[i] = token_id
    return token_ids


def _logprobs(
    logits: Tensor, rows: Sequence[SampledRow], token_ids: dict[int, int | None]
) -> dict[int, TokenLogprobs]:
    """By row, where a token was taken and its logprobs are asked for."""
    asked = [
        (i, token_id, row.params.num_logprobs)
        for i, row in enumerate(rows)
        if row.params.num_logprobs is not None and (token_id := token_ids[i]) is not None
    ]
    if not asked:
        return {}
    places, taken, counts = zip(*asked, strict=True)
    return dict(zip(places, token_logprobs(_rows_of(logits, places), taken, counts), strict=True))


def _rows_of(logits: Tensor, places: Sequence[int]) -> Tensor:
    """Those rows; without a copy where they are all there is."""
    return logits if len(places) == len(logits) else logits[list(places)]
