"""The written reference of sampling: one row at a time, float64, the vocabulary sorted in full.

The order is: bias, penalties, mask; greedy ends here. Then temperature, top-k, top-p, min-p, and the draw.

Candidates stand by (logit descending, id ascending). Each weighs exp((logit - best) / temperature): its
softmax probability up to a factor that all share, and that cancels in everything below. It is left out on
purpose: equal logits then have weights that are exactly equal, and even odds add up exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GREEDY_BELOW = 1e-5


def sample_token(
    logits: Tensor,  # [vocab]
    *,
    drawn: float,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> int:
    """The token that the number `drawn` in [0, 1) falls on: the first candidate whose cumulative
    probability reaches it. Below a temperature of 1e-5 it is the first candidate whatever the number."""
    token_ids, weights = candidates(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    cumulative = weights.cumsum(dim=0)
    return int(token_ids[(cumulative >= drawn * cumulative[-1]).nonzero()[0]])


def candidates(
    logits: Tensor,  # [vocab]
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[Tensor, Tensor]:  # [kept] int64, [kept] float64
    """The tokens that may be drawn, in order, and their weights.

    top-k keeps the k first, 0 all. top-p keeps, of what top-k kept, the shortest head that holds at
    least this share: with the token that crosses it, so never nothing. min-p drops what is less
    probable than `min_p` times the most probable token: a ratio, so it is the same before and after
    the other two.
    """
    values, token_ids = logits.double().sort(descending=True, stable=True)
    if temperature < GREEDY_BELOW:
        return token_ids[:1], torch.ones(1, dtype=torch.float64)
    weights = ((values - values[0]) / temperature).exp()
    if top_k > 0:
        weights = weights[:top_k]
    if top_p < 1.0:
        cumulative = weights.cumsum(dim=0)
        crossing = (cumulative >= top_p * cumulative[-1]).nonzero()[0]
        weights = weights[: crossing + 1]
    weights = weights[weights >= min_p * weights[0]]
    return token_ids[: len(weights)], weights


def process_logits(
    logits: Tensor,  # [vocab]
    *,
    logit_bias: Sequence[tuple[int, float]] = (),
    prompt_token_ids: Sequence[int] = (),
    output_token_ids: Sequence[int] = (),
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    masked_token_ids: Sequence[int] = (),
) -> Tensor:  # [vocab] float64
    """Bias is added. Repetition is for tokens in prompt or output, presence and frequency for those in
    the output. What is masked is never drawn."""
    logits = logits.double().clone()
    for token_id, bias in logit_bias:
        logits[token_id] += bias
    for token_id in {*prompt_token_ids, *output_token_ids}:
        if logits[token_id] > 0:
            logits[token_id] /= repetition_penalty
        else:
            logits[token_id] *= repetition_penalty
    for token_id in {*output_token_ids}:
        logits[token_id] -= presence_penalty + frequency_penalty * output_token_ids.count(token_id)
    for token_id in masked_token_ids:
        logits[token_id] = -torch.inf
    return logits


def logprobs(
    logits: Tensor,  # [vocab] as the model made them
) -> Tensor:  # [vocab] float64
    """Natural logarithms of the model's distribution: before all of the above."""
    return logits.double().log_softmax(dim=-1)


def top_logprobs(
    logits: Tensor,  # [vocab] as the model made them
    count: int,
) -> list[tuple[int, float]]:
    """The likeliest tokens by (logprob descending, id ascending)."""
    told = sorted(enumerate(logprobs(logits).tolist()), key=lambda token: (-token[1], token[0]))
    return told[:count]
