"""The sampler against the written reference: same token for same logits, parameters and position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.philox import uniform
from engine.sampler import SampledRow, sample
from kernels import reference_sampling
from tests.builders_sampler import reference_token, row, tokens

INF = math.inf
VOCABS = (3, 50, 700)
"""700 is longer than the list of candidates that is made first."""


def made_logits(kind: str, vocab: int, count: int, seed: int) -> Tensor:  # [count, vocab] float32
    random = torch.Generator().manual_seed(seed)
    if kind == "ties":
        return torch.randint(-40, 40, (count, vocab), generator=random) / 4
    if kind == "flat":
        return torch.randint(0, 2, (count, vocab), generator=random).float() - 30
    logits = torch.randn(count, vocab, generator=random) * {"usual": 3, "sharp": 30, "extreme": 1e4}[kind]
    logits[:, :-1][torch.rand(count, vocab - 1, generator=random) < 0.3] = -INF
    return logits


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, list[SampledRow]]:
    vocab = draw(st.sampled_from(VOCABS))
    token_ids = st.integers(0, vocab - 1)
    rows = draw(st.lists(rows_over(token_ids, vocab), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["ties", "flat", "usual", "sharp", "extreme"]))
    logits = made_logits(kind, vocab, len(rows), draw(st.integers(0, 2**31)))
    return (logits.double() if draw(st.booleans()) else logits), rows


@st.composite
def rows_over(draw: st.DrawFn, token_ids: st.SearchStrategy[int], vocab: int) -> SampledRow:
    history = draw(st.lists(token_ids, max_size=12))
    chosen = {
        "temperature": draw(st.sampled_from([0.0, 1e-6, 1e-5, 1e-4, 0.01, 0.3, 0.8, 1.0, 2.0])),
        "top_p": draw(st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0, 1.0])),
        "top_k": draw(st.sampled_from([0, 0, 0, 1, 2, 5, 200, 300, 10**9])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0])),
        "seed": draw(st.integers(-(2**63), 2**64)),
    }
    if draw(st.booleans()):
        chosen["repetition_penalty"] = draw(st.sampled_from([0.5, 1.0, 1.1, 2.0]))
        chosen["presence_penalty"] = draw(st.sampled_from([-2.0, 0.0, 0.7, 2.0]))
        chosen["frequency_penalty"] = draw(st.sampled_from([-2.0, 0.0, 0.3, 2.0]))
    if draw(st.booleans()):
        biases = st.sampled_from([-100.0, -1.5, 0.25, 100.0])
        chosen["logit_bias"] = tuple(draw(st.dictionaries(token_ids, biases, max_size=3)).items())
    masked = draw(st.sets(st.integers(0, vocab - 2), max_size=2))
    index = draw(st.integers(0, len(history)))
    return row(index, sibling=draw(st.integers(0, 4)), history=history, masked=sorted(masked), **chosen)


@settings(max_examples=150)
@given(batches())
def test_equals_the_reference_whatever_is_beside_it(batch: tuple[Tensor, list[SampledRow]]) -> None:
    logits, rows = batch
    before = logits.clone()
    expected = [reference_token(logits[i], asked) for i, asked in enumerate(rows)]
    assert tokens(logits, rows) == expected
    assert [tokens(logits[i : i + 1], [asked])[0] for i, asked in enumerate(rows)] == expected
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocab", [200, 1000, 20_000])
@pytest.mark.parametrize(
    "cut",
    [
        {"temperature": 1e15},
        {"temperature": 4.0},
        {"temperature": 1e15, "top_p": 0.75},
        {"temperature": 1e15, "top_k": 700},
        {"temperature": 1e15, "top_k": 700, "top_p": 0.5},
        {"temperature": 40.0, "min_p": 1e-3},
    ],
)
def test_however_long_a_list_has_to_be_sorted(vocab: int, cut: dict[str, Any]) -> None:
    rows = [row(i, **cut) for i in range(10)]
    logits = -torch.arange(vocab).float().expand(10, -1)
    assert tokens(logits, rows) == [reference_token(logits[0], asked) for asked in rows]


def test_even_odds_turn_the_number_drawn_into_the_place_in_order() -> None:
    rows = [row(i, temperature=1e15) for i in range(30)]
    logits = -torch.arange(20_000).float().expand(30, -1)
    assert tokens(logits, rows) == [math.ceil(uniform(0, i, 0) * 20_000) - 1 for i in range(30)]


@pytest.mark.parametrize("beside", [-1e-12, 1e-12])
@pytest.mark.parametrize("place", range(6))
def test_a_border_next_to_a_candidate_is_decided_exactly(place: int, beside: float) -> None:
    """The total that is known beside a short list is too rough to tell on which side it lies."""
    logits = torch.cat([torch.linspace(1.0, 0.9, 8), torch.linspace(-3.0, -9.0, 992)])
    _, weights = reference_sampling.candidates(logits, temperature=1.0)
    share = (weights.cumsum(0)[place] / weights.cumsum(0)[-1]).item()
    rows = [row(i, top_p=share + beside) for i in range(100)]
    drawn = tokens(logits.expand(100, -1), rows)
    assert drawn == [reference_token(logits, asked) for asked in rows]
    assert max(drawn) == place + (beside > 0)


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    assert tokens(logits, [row(temperature=0.0)]) == [1]
    assert tokens(logits, [row(temperature=1.0, top_k=1)]) == [1]
    assert {tokens(logits, [row(i, top_k=2)])[0] for i in range(50)} == {1, 2}


def drawn_tokens(logits: Tensor, **params: Any) -> set[int]:
    """What 100 draws from one row of logits [vocab] give."""
    return set(tokens(logits.expand(100, -1), [row(i, **params) for i in range(100)]))


def test_top_p_keeps_the_token_that_crosses() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1]).log()
    assert drawn_tokens(logits, top_p=0.59) == {0}
    assert drawn_tokens(logits, top_p=0.61) == {0, 1}
    # Renormalised after top-k: 0.6 of 0.9 is two thirds.
    assert drawn_tokens(logits, top_k=2, top_p=0.65) == {0}


def test_top_p_0_keeps_the_best_alone_even_beside_equals() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0])
    assert drawn_tokens(logits, top_p=0.0) == {1}
    assert drawn_tokens(logits, top_p=1e-9) == {1}


def test_min_p_is_relative_to_the_most_probable_after_temperature() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    assert drawn_tokens(logits, min_p=0.59) == {0, 1}
    assert drawn_tokens(logits, min_p=0.61) == {0}
    # At temperature 2 the ratio of 0.6 is its root, 0.77; that of 0.4 is 0.63.
    assert drawn_tokens(logits, min_p=0.61, temperature=2.0) == {0, 1, 2}
    assert drawn_tokens(logits, min_p=0.65, temperature=2.0) == {0, 1}


def test_min_p_0_drops_nothing_and_min_p_1_keeps_what_equals_the_best() -> None:
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0 - 2**-23, 1.0])
    assert drawn_tokens(logits, min_p=0.0) == {0, 1, 2, 3, 4}
    assert drawn_tokens(logits, min_p=1.0) == {1, 2, 4}


def test_a_top_k_beyond_the_vocabulary_keeps_it_all() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)).expand(40, -1)
    kept_all = tokens(logits, [row(i) for i in range(40)])
    assert tokens(logits, [row(i, top_k=10**9) for i in range(40)]) == kept_all


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-5, 1e-4, 5e-3, 0.01])
@pytest.mark.parametrize("scale", [30.0, 1e4, 3e38])
def test_low_temperatures_are_greedy_without_overflow(temperature: float, scale: float) -> None:
    logits = torch.tensor([-scale, scale, scale * 29 / 30, -scale])
    assert drawn_tokens(logits, temperature=temperature) == {1}
    assert drawn_tokens(logits, temperature=temperature, logit_bias=((3, 1.0),)) == {1}


def test_greedy_ends_at_the_documented_temperature() -> None:
    logits = torch.tensor([1.0, 1.0 - 2**-24])  # neighbours in float32: at 1e-5 nearly even odds
    assert drawn_tokens(logits, temperature=9.9e-6) == {0}
    assert drawn_tokens(logits, temperature=1e-5) == {0, 1}


def test_greedy_sees_bias_penalties_and_mask() -> None:
    logits = torch.tensor([3.0, 2.5, 2.0, -1.0])

    def best(**asked: Any) -> int:
        return tokens(logits[None], [row(asked.pop("index", 0), temperature=0.0, **asked)])[0]

    assert best() == 0
    assert best(logit_bias=((3, 4.5),)) == 3
    assert best(repetition_penalty=1.3, history=[0]) == 1
    assert best(presence_penalty=0.6, history=[0], index=1) == 1
    assert best(frequency_penalty=0.3, history=[0, 0, 1], index=3) == 0  # 2.4, 2.2, 2.0
    assert best(frequency_penalty=0.6, history=[0, 0, 1], index=3) == 2  # 1.8, 1.9, 2.0
    assert best(masked=[0, 1]) == 2


def test_repetition_counts_the_prompt_and_the_other_penalties_do_not() -> None:
    logits = torch.tensor([[1.0, 0.9]])
    prompt = [0, 0, 0]
    assert tokens(logits, [row(0, temperature=0.0, presence_penalty=2.0, history=prompt)]) == [0]
    assert tokens(logits, [row(0, temperature=0.0, frequency_penalty=2.0, history=prompt)]) == [0]
    assert tokens(logits, [row(0, temperature=0.0, repetition_penalty=1.2, history=prompt)]) == [1]


def test_repetition_makes_a_negative_logit_more_negative() -> None:
    logits = torch.tensor([[-1.0, -1.1, -INF]])
    assert tokens(logits, [row(temperature=0.0, repetition_penalty=1.2, history=[0, 2])]) == [1]
    assert tokens(logits, [row(temperature=0.0, repetition_penalty=0.5, history=[1, 2])]) == [1]


def test_bias_comes_before_repetition() -> None:
    """(1 + 2) / 2 = 1.5 loses to 1.6; 1 / 2 + 2 would win."""
    logits = torch.tensor([[1.0, 1.6]])
    asked = row(temperature=0.0, logit_bias=((0, 2.0),), repetition_penalty=2.0, history=[0])
    assert tokens(logits, [asked]) == [1]


def test_bias_and_penalties_are_not_rounded_to_float32() -> None:
    logits = torch.tensor([[16.0, 16.0, 16.0]])
    assert tokens(logits, [row(temperature=0.0, logit_bias=((1, 1e-9),))]) == [1]
    assert tokens(logits, [row(2, temperature=0.0, presence_penalty=1e-9, history=[0, 1])]) == [2]


def test_what_is_masked_is_never_drawn() -> None:
    logits = torch.tensor([9.0, 9.0, 0.0, 0.0])
    assert drawn_tokens(logits, masked=(0, 1)) == {2, 3}
    assert drawn_tokens(logits, masked=(0, 1), logit_bias=((0, 100.0),)) == {2, 3}


@pytest.mark.parametrize("count", [2, 9])
def test_one_row_is_drawn_alike_in_every_batch(count: int) -> None:
    random = torch.Generator().manual_seed(count)
    logits = torch.randn(count, 50_000, generator=random)
    rows = [
        row(i, seed=i, num_logprobs=3, frequency_penalty=i % 2, top_p=1 - i % 3 / 9) for i in range(count)
    ]
    together = sample(logits, [*rows])
    assert [sample(logits[i : i + 1], [rows[i]])[0] for i in range(count)] == together


def test_seed_sibling_and_index_each_change_the_draw() -> None:
    logits = torch.zeros(1, 100_000)

    def draw(**at: int) -> int:
        return tokens(logits, [row(at.pop("output_index", 0), **at)])[0]

    assert len({draw(seed=1), draw(seed=2), draw(seed=1, sibling=1), draw(seed=1, output_index=1)}) == 4


@pytest.mark.parametrize("seed", [-1, -(2**63), -(2**63) - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 5, 2**70])
def test_a_seed_counts_mod_2_to_64(seed: int) -> None:
    logits = torch.zeros(20, 1000)
    rows, equals = [row(i, seed=seed) for i in range(20)], [row(i, seed=seed % 2**64) for i in range(20)]
    assert tokens(logits, rows) == tokens(logits, equals)
    assert tokens(logits, rows) != tokens(logits, [row(i, seed=seed + 1) for i in range(20)])


def test_siblings_have_streams_of_their_own() -> None:
    logits = torch.zeros(50, 600)
    streams = {tuple(tokens(logits, [row(i, sibling=n) for i in range(50)])) for n in range(16)}
    assert len(streams) == 16
    starts = [stream[0] for stream in streams]
    assert len(set(starts)) > 10
