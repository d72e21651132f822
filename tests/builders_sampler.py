"""Rows to sample, and what the written reference says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from engine.philox import uniform
from engine.request import SamplingParams
from engine.sampler import SampledRow, sample
from kernels import reference_sampling


def row(
    output_index: int = 0,
    *,
    sibling: int = 0,
    history: Sequence[int] = (),
    masked: Sequence[int] = (),
    **params: Any,
) -> SampledRow:
    sampling = SamplingParams(max_tokens=1, **params)
    return SampledRow(sampling, output_index, sibling, tuple(history), tuple(masked))


def tokens(logits: Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """The token ids drawn, where no row fails."""
    draws = sample(logits, rows)
    assert [draw.error for draw in draws] == [None] * len(rows)
    return [draw.token_id for draw in draws if draw.token_id is not None]


def reference_logits(logits: Tensor, asked: SampledRow) -> Tensor:
    """What the row of logits [vocab] becomes before it is drawn from."""
    params, num_prompt_tokens = asked.params, max(0, len(asked.history) - asked.output_index)
    return reference_sampling.process_logits(
        logits,
        logit_bias=params.logit_bias,
        prompt_token_ids=asked.history[:num_prompt_tokens],
        output_token_ids=asked.history[num_prompt_tokens:],
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        masked_token_ids=asked.masked_token_ids,
    )


def reference_token(logits: Tensor, asked: SampledRow) -> int:
    params = asked.params
    return reference_sampling.sample_token(
        reference_logits(logits, asked),
        drawn=uniform(params.seed, asked.output_index, asked.sibling),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
    )
