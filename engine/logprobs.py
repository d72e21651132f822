"""Logprobs of the model's own distribution: before bias, penalties, mask and temperature."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.request import TokenLogprobs


def token_logprobs(
    logits: Tensor,  # [R, vocab] as the model made them
    token_ids: Sequence[int],
    counts: Sequence[int],
) -> list[TokenLogprobs]:
    """Of each row's taken token and its `counts[i]` likeliest; natural logarithms, in float64.

    Row by row: the memory is that of one, and it fits a core's cache.
    """
    told = []
    for values, token_id, count in zip(logits, token_ids, counts, strict=True):
        logprobs = values.double().log_softmax(dim=-1)
        told.append(TokenLogprobs(logprobs[token_id].item(), _likeliest(logprobs, count)))
    return told


def _likeliest(
    logprobs: Tensor,  # [vocab]
    count: int,
) -> tuple[tuple[int, float], ...]:
    """By (logprob descending, id ascending). Which of equal ones `topk` finds is left open by torch, so
    it only says how low the list reaches."""
    count = min(count, len(logprobs))
    if count == 0:
        return ()
    lowest = logprobs.topk(count).values[-1]
    token_ids = (logprobs >= lowest).nonzero()[:, 0]
    values, order = logprobs[token_ids].sort(descending=True, stable=True)
    return tuple(zip(token_ids[order[:count]].tolist(), values[:count].tolist(), strict=True))
