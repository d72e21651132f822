"""Logprobs: of the model's own distribution, exact, whatever the row is drawn with."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import TokenLogprobs
from engine.sampler import SampledRow, sample
from kernels import reference_sampling
from tests.builders_sampler import row
from tests.engine.test_sampler import batches


def told(logits: torch.Tensor, asked: SampledRow) -> TokenLogprobs:
    """What one row of logits [vocab] answers."""
    (draw,) = sample(logits[None], [asked])
    assert draw.logprobs is not None
    return draw.logprobs


@settings(max_examples=60)
@given(batches(), st.lists(st.sampled_from([None, 0, 1, 5, 20, 1000]), min_size=4, max_size=4))
def test_equal_the_reference_whatever_else_is_asked(
    batch: tuple[torch.Tensor, list[SampledRow]], counts: list[int | None]
) -> None:
    logits, rows = batch
    asked = [
        replace(each, params=msgspec.structs.replace(each.params, num_logprobs=count))
        for each, count in zip(rows, counts, strict=False)
    ]
    silent = sample(logits, rows)
    for values, count, draw, without in zip(logits, counts, sample(logits, asked), silent, strict=False):
        assert draw.token_id is not None
        assert draw.token_id == without.token_id
        if count is None:
            assert draw.logprobs is None
        else:
            logprob = reference_sampling.logprobs(values)[draw.token_id].item()
            top = tuple(reference_sampling.top_logprobs(values, count))
            assert draw.logprobs == TokenLogprobs(logprob, top)


def test_they_are_natural_logarithms_of_the_raw_distribution() -> None:
    shares = [0.5, 0.3, 0.15, 0.05]
    asked = row(
        1,
        temperature=0.0,
        num_logprobs=4,
        logit_bias=((3, 100.0),),
        presence_penalty=2.0,
        repetition_penalty=1.5,
        history=[0, 1],
        masked=(0,),
    )
    answer = told(torch.tensor(shares, dtype=torch.float64).log(), asked)
    assert answer.logprob == pytest.approx(math.log(0.05), abs=1e-12)
    assert [token_id for token_id, _ in answer.top] == [0, 1, 2, 3]
    assert [math.exp(logprob) for _, logprob in answer.top] == pytest.approx(shares, abs=1e-12)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_all_of_a_vocabulary_adds_up_to_1(scale: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(3)) * scale
    answer = told(logits, row(temperature=0.3, num_logprobs=5000))
    assert len({token_id for token_id, _ in answer.top}) == 5000
    assert math.fsum(math.exp(logprob) for _, logprob in answer.top) == pytest.approx(1.0, abs=1e-12)


def test_without_a_number_only_the_taken_token_is_told() -> None:
    answer = told(torch.tensor([0.0, 0.0]), row(temperature=0.0, num_logprobs=0))
    assert answer == TokenLogprobs(pytest.approx(-math.log(2), abs=1e-15), ())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 20])
def test_of_equal_ones_at_the_end_of_the_list_the_lower_ids_are_told(count: int) -> None:
    logits = torch.zeros(1000)
    logits[[500, 900]] = 1.0
    order = [500, 900, *(i for i in range(1000) if i not in (500, 900))]
    assert [token_id for token_id, _ in told(logits, row(num_logprobs=count)).top] == order[:count]


def test_the_taken_token_is_told_also_where_it_is_not_among_the_likeliest() -> None:
    logits = torch.tensor([3.0, 0.0, 1.0])
    answer = told(logits, row(temperature=0.0, num_logprobs=1, masked=(0, 2)))
    reference = reference_sampling.logprobs(logits)
    assert answer == TokenLogprobs(reference[1].item(), ((0, reference[0].item()),))


def test_a_row_that_asks_for_none_gets_none_beside_one_that_does() -> None:
    draws = sample(torch.zeros(3, 10), [row(num_logprobs=2), row(), row(num_logprobs=0)])
    assert [draw.logprobs is None for draw in draws] == [False, True, False]
