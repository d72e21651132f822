"""A row's fault is that row's error; its neighbours are what they would be without it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import sampler
from engine.sampler import Draw, SampledRow, sample
from tests.builders_sampler import row

NAN, INF = math.nan, math.inf
VOCAB = 1000

NEIGHBOURS = [
    row(0, temperature=0.0),
    row(1, temperature=0.8, seed=1, num_logprobs=2),
    row(2, top_k=40, top_p=0.9, seed=2, frequency_penalty=0.5, history=[5, 6, 7], num_logprobs=0),
    row(3, min_p=0.05, seed=3, logit_bias=((7, 3.0),), masked=(8,)),
]


def logits_of(count: int) -> Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(5)) * 2


def sample_beside_neighbours(bad_logits: Tensor, bad: SampledRow) -> Draw:
    """The bad row's draw; in every place of the batch, its neighbours are as without it."""
    logits = logits_of(len(NEIGHBOURS))
    alone = sample(logits, NEIGHBOURS)
    assert not any(draw.error for draw in alone)
    found = set()
    for place in range(len(NEIGHBOURS) + 1):
        draws = sample(
            torch.cat([logits[:place], bad_logits[None], logits[place:]]),
            [*NEIGHBOURS[:place], bad, *NEIGHBOURS[place:]],
        )
        found.add(draws.pop(place))
        assert draws == alone
    (draw,) = found
    return draw


ASKED = {
    "greedy": row(temperature=0.0),
    "drawn": row(),
    "cut": row(top_k=5, top_p=0.5, min_p=0.1),
    "told": row(num_logprobs=5),
    "penalised": row(1, presence_penalty=1.0, repetition_penalty=1.1, history=[3, 3]),
    "biased": row(logit_bias=((3, -100.0),)),
    "masked": row(masked=(3,)),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("value", [NAN, INF])
def test_one_value_that_is_not_finite_fails_its_row(asked: SampledRow, value: float) -> None:
    """Also where it is at the token that is masked or biased away."""
    logits = torch.zeros(VOCAB)
    logits[3] = value
    assert sample_beside_neighbours(logits, asked) == Draw(None, error="non_finite_logits")


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_row_without_any_candidate_fails(asked: SampledRow) -> None:
    nothing = torch.full((VOCAB,), -INF)
    assert sample_beside_neighbours(nothing, asked) == Draw(None, error="non_finite_logits")


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_minus_infinity_is_a_token_that_is_never_drawn(asked: SampledRow) -> None:
    only = torch.full((VOCAB,), -INF)
    only[VOCAB - 1] = -7.0
    draw = sample_beside_neighbours(only, asked)
    assert (draw.token_id, draw.error) == (VOCAB - 1, None)


@pytest.mark.parametrize(
    "emptied",
    [
        row(masked=range(VOCAB)),
        row(temperature=0.0, masked=range(VOCAB)),
        row(logit_bias=tuple((i, -INF) for i in range(VOCAB))),
        row(logit_bias=((1, NAN),)),
        row(logit_bias=((1, INF),)),
        row(1, presence_penalty=NAN, history=[2]),
    ],
)
def test_bias_penalties_and_mask_that_leave_nothing_to_draw_fail_their_row(emptied: SampledRow) -> None:
    assert sample_beside_neighbours(torch.zeros(VOCAB), emptied) == Draw(None, error="non_finite_logits")


@pytest.mark.parametrize("token_id", [-1, VOCAB, 10**6, -(2**40), 2**70])
@pytest.mark.parametrize(
    "where",
    [
        lambda token_id: row(logit_bias=((3, 1.0), (token_id, 1.0))),
        lambda token_id: row(masked=(3, token_id)),
        lambda token_id: row(repetition_penalty=1.2, history=[3, token_id]),
        lambda token_id: row(2, frequency_penalty=1.2, history=[3, token_id]),
    ],
    ids=["logit_bias", "masked_token_ids", "prompt", "output"],
)
def test_a_token_id_outside_the_vocabulary_fails_its_row_and_writes_nowhere(
    where: Any, token_id: int
) -> None:
    assert sample_beside_neighbours(torch.zeros(VOCAB), where(token_id)) == Draw(None, error="sampler_error")


def test_the_log_says_what_failed_and_holds_no_token(caplog: pytest.LogCaptureFixture) -> None:
    logits = torch.full((1, VOCAB), 123.456)
    sample(logits, [row(1, presence_penalty=1.0, history=[424242])])
    assert "history holds a token id outside the vocabulary" in caplog.text
    assert "424242" not in caplog.text
    assert "123.456" not in caplog.text


def test_a_history_shorter_than_the_output_fails_its_row() -> None:
    asked = row(3, presence_penalty=1.0, history=[1, 2])
    assert sample_beside_neighbours(torch.zeros(VOCAB), asked) == Draw(None, error="sampler_error")


def test_a_temperature_that_is_no_number_fails_its_row() -> None:
    asked = row(temperature=NAN)
    assert sample_beside_neighbours(torch.zeros(VOCAB), asked) == Draw(None, error="sampler_error")


@pytest.mark.parametrize("name", ["draw_candidates", "process_logits", "token_logprobs"])
@pytest.mark.parametrize("raised", [RuntimeError("out of memory"), MemoryError(), ZeroDivisionError()])
def test_whatever_raises_for_one_row_fails_that_row_alone(
    name: str, raised: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = getattr(sampler, name)

    def raises_at_the_mark(logits: Tensor, *others: Any) -> Any:
        if bool((logits == 77.0).any()):
            raise raised
        return usual(logits, *others)

    monkeypatch.setattr(sampler, name, raises_at_the_mark)
    marked = torch.zeros(VOCAB)
    marked[1] = 77.0
    asked = row(seed=4, num_logprobs=1, logit_bias=((2, 0.0),))
    assert sample_beside_neighbours(marked, asked) == Draw(None, error="sampler_error")
    assert type(raised).__name__ in caplog.text


def test_what_only_fails_in_a_batch_is_logged_and_costs_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logits, usual = logits_of(len(NEIGHBOURS)), sampler.draw_candidates
    expected = sample(logits, NEIGHBOURS)

    def alone_only(logits: Tensor, best: Tensor, rows: Sequence[SampledRow]) -> list[int]:
        if len(rows) > 1:
            raise RuntimeError("too much at once")
        return usual(logits, best, rows)

    monkeypatch.setattr(sampler, "draw_candidates", alone_only)
    with caplog.at_level(logging.ERROR):
        assert sample(logits, NEIGHBOURS) == expected
    assert [record.getMessage() for record in caplog.records] == ["sampling failed in a batch of 4"]


def test_no_rows_are_no_draws() -> None:
    assert sample(torch.empty(0, VOCAB), []) == []
