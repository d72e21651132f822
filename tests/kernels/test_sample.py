"""The sampling kernel against the written reference, row by row, and what parity does not say of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import philox
from engine.sampled_row import SampledRow
from engine.triton_sampler import edits_of, sampling_of
from kernels import reference_sample
from kernels.parity.cases_sample import SMALL
from kernels.sample import sample, uniform
from kernels.sample_rows import (
    DRAWN,
    NEAR_TIE,
    NOT_FINITE,
    SampleTile,
    make_sampled,
    make_workspace,
)
from tests.builders_sampler import reference_token, row

CPU = torch.device("cpu")
INF = math.inf
POSITIONS = [(0, 0, 0), (2**64 - 1, 2**31 - 1, 127), (0x89ABCDEF01234567, 5, 2), (-1, 0, 1), (1, 1, 0)]
"""(seed, output index, sibling)"""


@triton.jit
def _uniform_kernel(sampling, numbers):
    place = tl.program_id(0)
    tl.store(numbers + place, uniform(sampling, place))


def test_the_number_drawn_is_the_engine_s() -> None:
    generator = torch.Generator().manual_seed(4)
    more = torch.randint(0, 2**31, (20, 4), generator=generator).tolist()
    positions = POSITIONS + [(high << 32 | low, index, sibling) for high, low, index, sibling in more]
    numbers = torch.empty(len(positions), dtype=torch.float64)
    rows = [row(index, sibling=sibling, seed=seed) for seed, index, sibling in positions]
    _uniform_kernel[(len(rows),)](sampling_of(rows, CPU), numbers)
    expected = [philox.uniform(*position) for position in positions]
    assert numbers.tolist() == expected
    assert [reference_sample.uniform(*position) for position in positions] == expected
    assert numbers[0].item() == 0x6627E8 / 2**24  # of the known answers of Philox's authors


@st.composite
def rows_over(draw: st.DrawFn, vocab: int) -> SampledRow:
    token_ids = st.integers(0, vocab - 1)
    history = draw(st.lists(token_ids, max_size=12))
    chosen: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 1e-6, 1e-5, 0.01, 0.3, 1.0, 2.0])),
        "top_p": draw(st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 1.0, 1.0])),
        "top_k": draw(st.sampled_from([0, 0, 1, 2, 5, 30, 10**9])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0])),
        "seed": draw(st.integers(-(2**63), 2**64)),
        "repetition_penalty": draw(st.sampled_from([0.5, 1.0, 1.1, 2.0])),
        "presence_penalty": draw(st.sampled_from([-2.0, 0.0, 0.7])),
        "frequency_penalty": draw(st.sampled_from([-2.0, 0.0, 0.3])),
    }
    biases = st.sampled_from([-100.0, -1.5, 0.25, 100.0])
    chosen["logit_bias"] = tuple(draw(st.dictionaries(token_ids, biases, max_size=3)).items())
    masked = draw(st.sets(st.integers(0, vocab - 2), max_size=2))
    index = draw(st.integers(0, len(history)))
    return row(index, sibling=draw(st.integers(0, 4)), history=history, masked=sorted(masked), **chosen)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, list[SampledRow]]:
    vocab = draw(st.sampled_from([3, 50]))
    rows = draw(st.lists(rows_over(vocab), min_size=1, max_size=2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([0.0, 3.0, 30.0, 1e4]))
    logits = torch.randn(len(rows), vocab, generator=generator) * scale
    if draw(st.booleans()):
        logits = (logits / 4).round() / 4  # many are equal
    logits[:, :-1][torch.rand(len(rows), vocab - 1, generator=generator) < 0.3] = -INF
    return logits, rows


def check_tokens(batch: tuple[Tensor, list[SampledRow]]) -> None:
    logits, rows = batch
    sampling, edits = sampling_of(rows, CPU), edits_of(rows, logits)
    sampled = sample(logits, sampling, edits, tile=SMALL)
    assert sampled.outcomes.tolist() == reference_sample.sample(logits, sampling, edits).outcomes.tolist()
    for place, asked in enumerate(rows):
        if sampled.outcomes[place] != NEAR_TIE:
            assert sampled.token_ids[place] == reference_token(logits[place], asked)


@settings(max_examples=8)
@given(batches())
def test_tokens_are_the_reference_s(batch: tuple[Tensor, list[SampledRow]]) -> None:
    check_tokens(batch)


@pytest.mark.soak
@settings(max_examples=500)
@given(batches())
def test_tokens_are_the_reference_s_at_length(batch: tuple[Tensor, list[SampledRow]]) -> None:
    check_tokens(batch)


def drawn_by(logits: Tensor, *rows: SampledRow, **options: Any) -> tuple[list[int], list[int]]:
    """Token ids and outcomes."""
    sampled = sample(logits, sampling_of(rows, CPU), **options)
    return sampled.token_ids.tolist(), sampled.outcomes.tolist()


def test_even_odds_turn_the_number_drawn_into_the_place_in_order() -> None:
    rows = [row(i, seed=3) for i in range(5)]
    token_ids, _ = drawn_by(torch.full((5, 50), -7.0), *rows, tile=SMALL)
    assert token_ids == [math.ceil(philox.uniform(3, i, 0) * 50) - 1 for i in range(5)]


def test_a_border_that_is_hit_exactly_belongs_to_what_is_before_it() -> None:
    rows = [row(i, seed=3, top_p=0.5, temperature=2.0) for i in range(8)]
    token_ids, outcomes = drawn_by(torch.zeros(8, 4), *rows)
    assert set(token_ids) == {0, 1}
    assert outcomes == [NEAR_TIE] * 8


@pytest.mark.parametrize(("beside", "outcome"), [(0.0, NEAR_TIE), (8e-6, NEAR_TIE), (2e-5, DRAWN)])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_border_beside_the_number_drawn_is_told(beside: float, outcome: int, side: int) -> None:
    border = philox.uniform(5, 0, 0) + side * beside
    logits = torch.tensor([[math.log(border), math.log1p(-border)]])
    assert border > 0.5, "the first token is to be the likelier one"
    token_ids, outcomes = drawn_by(logits, row(seed=5))
    assert outcomes == [outcome]
    assert outcome == NEAR_TIE or token_ids == [0 if side > 0 else 1]


def test_a_border_beside_top_p_is_told() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    cuts = [row(seed=1, top_p=0.75 + beside) for beside in (-2e-5, -8e-6, 8e-6, 2e-5)]
    _, outcomes = drawn_by(logits.expand(4, 4), *cuts)
    assert outcomes == [DRAWN, NEAR_TIE, NEAR_TIE, DRAWN]


def test_what_is_not_finite_has_an_outcome_and_no_token_and_leaves_the_others_alone() -> None:
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    rows = [row(i, seed=2) for i in range(5)]
    alone, _ = drawn_by(logits, *rows)
    logits[0, 8], logits[1, 3], logits[3] = math.nan, INF, -INF
    token_ids, outcomes = drawn_by(logits, *rows)
    assert outcomes == [NOT_FINITE, NOT_FINITE, DRAWN, NOT_FINITE, DRAWN]
    assert token_ids == [0, 0, alone[2], 0, alone[4]]


def test_a_mask_hides_neither_a_nan_nor_that_nothing_is_left() -> None:
    rows = [row(masked=(1,)), row(masked=(0, 1, 2))]
    logits = torch.tensor([[1.0, math.nan, 2.0], [1.0, 2.0, 3.0]])
    sampled = sample(logits, sampling_of(rows, CPU), edits_of(rows, logits))
    assert sampled.outcomes.tolist() == [NOT_FINITE] * 2


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_token_depends_on_no_tile_and_on_nothing_beside_it(is_edited: bool) -> None:
    wide = torch.randn(2, 80, generator=torch.Generator().manual_seed(7)).round(decimals=1)
    logits = wide[:, :50]
    rows = [row(seed=9, top_p=0.8), row(1, seed=9, top_k=40)]
    edits = edits_of(rows, logits) if is_edited else None
    together, _ = drawn_by(logits, *rows, edits=edits)
    for tile in (SMALL, SampleTile(num_listed=1, capacity=1, num_ids=16)):
        assert drawn_by(logits, *rows, edits=edits, tile=tile)[0] == together
    assert [drawn_by(logits[i : i + 1], rows[i])[0] for i in range(2)] == [[token] for token in together]


def test_results_come_in_the_buffers_that_were_given() -> None:
    logits = torch.arange(12.0).view(2, 6)
    sampling = sampling_of([row(temperature=0.0), row(top_k=1)], CPU)
    out, workspace = make_sampled(2, CPU), make_workspace((4, 6), CPU, is_edited=False)
    assert sample(logits, sampling, out=out, workspace=workspace) is out
    assert out.token_ids.tolist() == [5, 5]


@pytest.mark.parametrize("number", [0.0, math.nan, INF, -1.0])
def test_padding_may_hold_anything_and_ends(number: float) -> None:
    """A row of a buffer that nobody filled: whatever comes of it, it is a token or none."""
    anything = torch.tensor([number], dtype=torch.float64)
    sampling = sampling_of([row()], CPU)._replace(temperature=anything, top_p=anything, min_p=anything)
    sampled = sample(torch.tensor([[1.0, 2.0, 2.0]]), sampling)
    assert 0 <= sampled.token_ids.item() < 3


def test_no_rows_are_no_trouble() -> None:
    sampled = sample(torch.zeros(0, 5), sampling_of([], CPU))
    assert sampled.token_ids.shape == sampled.outcomes.shape == (0,)


@pytest.mark.parametrize(
    ("logits", "rows", "vocab", "message"),
    [
        (torch.zeros(1, 4, dtype=torch.float16), 1, 4, "float32"),
        (torch.zeros(4, 1).T.expand(2, 4).T, 4, 2, "contiguous"),
        (torch.zeros(2, 4), 1, 4, "temperature is not of 2 rows"),
        (torch.zeros(1, 4), 1, 5, "output_counts must be contiguous, and of the logits' shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(logits: Tensor, rows: int, vocab: int, message: str) -> None:
    asked = [row()] * rows
    with pytest.raises(ValueError, match=message):
        sample(logits, sampling_of(asked, CPU), edits_of(asked, torch.zeros(rows, vocab)))
