"""The sampler against a written reference: same token for same logits, parameters and position."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.philox import uniform
from engine.request import SamplingParams
from engine.sampler import SampledRow, sample


def row(output_index: int = 0, sibling: int = 0, **params: Any) -> SampledRow:
    return SampledRow(SamplingParams(max_tokens=1, **params), output_index, sibling)


def reference(logits: list[float], asked: SampledRow) -> int:
    """The rule, step by step, in plain float64."""
    params = asked.params
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if params.temperature < 1e-5:
        return order[0]
    weights = [math.exp((logits[i] - logits[order[0]]) / params.temperature) for i in order]
    if params.top_k > 0:
        weights = weights[: params.top_k]
    shares = [weight / math.fsum(weights) for weight in weights]
    if params.top_p < 1.0:
        kept, cumulative = 0, 0.0
        while kept < len(shares):
            cumulative += shares[kept]
            kept += 1
            if cumulative >= params.top_p:
                break
        shares = [share / math.fsum(shares[:kept]) for share in shares[:kept]]
    drawn, cumulative = uniform(params.seed, asked.output_index, asked.sibling), 0.0
    for token_id, share in zip(order, shares, strict=False):
        cumulative += share
        if cumulative >= drawn:
            return token_id
    return max((i for i, share in enumerate(shares) if share > 0), key=lambda i: i)


rows = st.builds(
    row,
    output_index=st.integers(0, 10_000),
    sibling=st.integers(0, 4),
    temperature=st.sampled_from([0.0, 1e-6, 1e-4, 0.01, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 200, 300, 10**9]),
    seed=st.integers(-(2**63), 2**64),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(rows, min_size=1, max_size=4), st.integers(0, 2**31), st.sampled_from([3, 50, 700]))
def test_equals_the_reference_whatever_is_beside_it(batch: list[SampledRow], seed: int, vocab: int) -> None:
    # Logits in steps of 1/4 make many ties; a vocabulary of 700 is longer than the list sorted first.
    random = torch.Generator().manual_seed(seed)
    logits = torch.randint(-40, 40, (len(batch), vocab), generator=random) / 4
    expected = [reference(logits[i].tolist(), asked) for i, asked in enumerate(batch)]
    assert sample(logits, batch) == expected
    assert [sample(logits[i : i + 1], [asked])[0] for i, asked in enumerate(batch)] == expected


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    assert sample(logits, [row(temperature=0.0)]) == [1]
    assert sample(logits, [row(temperature=1.0, top_k=1)]) == [1]
    assert {sample(logits, [row(output_index=i, top_k=2)])[0] for i in range(50)} == {1, 2}


@pytest.mark.parametrize("vocab", [200, 1000, 20_000])
def test_a_flat_distribution_reaches_every_candidate(vocab: int) -> None:
    """However long a list has to be sorted: even odds turn the number drawn into the place in order."""
    asked = [row(output_index=i, temperature=1e15) for i in range(60)]
    logits = -torch.arange(vocab).float().expand(60, -1)
    assert sample(logits, asked) == [math.ceil(uniform(0, i, 0) * vocab) - 1 for i in range(60)]
    best = vocab * 7 // 10
    asked = [row(output_index=i, top_k=best) for i in range(60)]
    assert sample(torch.zeros(60, vocab), asked) == [
        math.ceil(uniform(0, i, 0) * best) - 1 for i in range(60)
    ]


def test_top_p_keeps_the_token_that_crosses() -> None:
    logits = torch.tensor([[math.log(0.6), math.log(0.3), math.log(0.1)]])
    assert {sample(logits, [row(output_index=i, top_p=0.59)])[0] for i in range(100)} == {0}
    assert {sample(logits, [row(output_index=i, top_p=0.61)])[0] for i in range(100)} == {0, 1}
    # Renormalised after top-k: 0.6 of 0.9 is two thirds.
    assert {sample(logits, [row(output_index=i, top_k=2, top_p=0.65)])[0] for i in range(100)} == {0}


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-5, 1e-4, 5e-3])
def test_low_temperatures_are_greedy_without_overflow(temperature: float) -> None:
    logits = torch.tensor([[-30.0, 30.0, 29.0, -30.0]])
    assert {sample(logits, [row(output_index=i, temperature=temperature)])[0] for i in range(20)} == {1}


def test_greedy_ends_at_the_documented_temperature() -> None:
    logits = torch.tensor([[1.0, 1.0 - 2**-24]])  # neighbours in float32: at 1e-5 nearly even odds
    assert {sample(logits, [row(output_index=i, temperature=9.9e-6)])[0] for i in range(50)} == {0}
    assert {sample(logits, [row(output_index=i, temperature=1e-5)])[0] for i in range(50)} == {0, 1}


def test_draws_follow_the_distribution() -> None:
    shares = [0.5, 0.25, 0.125, 0.0625, 0.0625]
    count = 8000
    logits = torch.tensor([shares]).log().expand(count, -1)
    drawn = Counter(sample(logits, [row(output_index=i, seed=11) for i in range(count)]))
    chi_square = sum((drawn[i] - share * count) ** 2 / (share * count) for i, share in enumerate(shares))
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded by chance once in 1,000 seeds


def test_seed_sibling_and_index_each_change_the_draw() -> None:
    logits = torch.zeros(1, 100_000)

    def draw(**at: int) -> int:
        return sample(logits, [row(**at)])[0]

    assert len({draw(seed=1), draw(seed=2), draw(seed=1, sibling=1), draw(seed=1, output_index=1)}) == 4


def test_logits_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        sample(torch.tensor([[0.0, float("nan")]]), [row(temperature=0.0)])
    assert sample(torch.tensor([[0.0, float("-inf")]]), [row()]) == [0]
