"""Draws follow the distribution that was asked for: chi-square over 10,000 positions.

The expected shares come from logits and kept tokens written out by hand. Seeds are fixed, so a test
passes always or never; a sampler without fault fails at 1 seed in 10,000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.philox import uniform
from engine.sampler import SampledRow
from tests.builders_sampler import row, tokens

COUNT = 10_000
BATCH = 2_000
WORST_P = 1e-4
LOGITS = [1.0, 2.5, 0.0, 2.0, -1.0, 1.5, 2.5, -40.0]
"""In order: tokens 1 and 6, then 3, 5, 0, 2, 4; the last is as good as impossible."""


def chi_square_p(counts: Sequence[int], shares: Sequence[float]) -> float:
    """How often chance alone strays this far. Cells that expect less than 5 must hold next to nothing."""
    total = sum(counts)
    cells = [(n, share * total) for n, share in zip(counts, shares, strict=True) if share * total >= 5]
    assert total - sum(n for n, _ in cells) <= 5
    statistic = sum((n - expected) ** 2 / expected for n, expected in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def softmax(logits: Sequence[float], temperature: float, kept: set[int]) -> list[float]:
    weights = [math.exp(logit / temperature) if i in kept else 0.0 for i, logit in enumerate(logits)]
    return [weight / sum(weights) for weight in weights]


def frequencies(logits: Sequence[float], rows: Sequence[SampledRow]) -> list[int]:
    batch = torch.tensor(logits).expand(BATCH, -1)
    drawn = [token for i in range(0, len(rows), BATCH) for token in tokens(batch, rows[i : i + BATCH])]
    return torch.tensor(drawn).bincount(minlength=len(logits)).tolist()


ALL = set(range(8))
HISTORY = [1, 1, 4, 1, 3, 3]
"""The prompt is 1, 1, 4; the output 1, 3, 3."""


@pytest.mark.parametrize(
    ("params", "logits", "temperature", "kept"),
    [
        ({}, LOGITS, 1.0, ALL),
        ({"temperature": 0.5}, LOGITS, 0.5, ALL),
        ({"top_k": 3}, LOGITS, 1.0, {1, 6, 3}),
        ({"top_p": 0.8}, LOGITS, 1.0, {1, 6, 3, 5}),  # 0.31, 0.62, 0.81
        ({"top_p": 0.85, "top_k": 4}, LOGITS, 1.0, {1, 6, 3}),  # of the four: 0.35, 0.70, 0.91
        ({"min_p": 0.3}, LOGITS, 1.0, {1, 6, 3, 5}),  # 0.61, 0.37, then 0.22
        ({"min_p": 0.3, "temperature": 2.0}, LOGITS, 2.0, {1, 6, 3, 5, 0}),  # 0.47, then 0.29
        ({"logit_bias": ((7, 42.0), (1, -3.0))}, [1.0, -0.5, 0.0, 2.0, -1.0, 1.5, 2.5, 2.0], 1.0, ALL),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(
    params: dict[str, Any], logits: list[float], temperature: float, kept: set[int]
) -> None:
    counts = frequencies(LOGITS, [row(i, seed=11, **params) for i in range(COUNT)])
    assert chi_square_p(counts, softmax(logits, temperature, kept)) > WORST_P
    assert all(i in kept for i, n in enumerate(counts) if n)


@pytest.mark.parametrize(
    ("params", "logits"),
    [
        ({"repetition_penalty": 2.0}, [1.0, 1.25, 0.0, 1.0, -2.0, 1.5, 2.5, -40.0]),
        ({"presence_penalty": 1.0}, [1.0, 1.5, 0.0, 1.0, -1.0, 1.5, 2.5, -40.0]),
        ({"frequency_penalty": 1.0}, [1.0, 1.5, 0.0, 0.0, -1.0, 1.5, 2.5, -40.0]),
        (
            {"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": -0.5},
            [1.0, 1.25, 0.0, 1.5, -2.0, 1.5, 2.5, -40.0],
        ),
    ],
    ids=str,
)
def test_penalties_change_the_distribution_as_written(params: dict[str, Any], logits: list[float]) -> None:
    # Each row is output number 3; the seed tells them apart.
    rows = [row(3, seed=seed, history=HISTORY, **params) for seed in range(COUNT)]
    assert chi_square_p(frequencies(LOGITS, rows), softmax(logits, 1.0, ALL)) > WORST_P


@pytest.mark.parametrize("varied", ["output_index", "sibling", "seed"])
def test_numbers_are_uniform_along_each_coordinate(varied: str) -> None:
    at = {"seed": 7, "output_index": 7, "sibling": 7}
    numbers = torch.tensor([uniform(**{**at, varied: i}) for i in range(COUNT)], dtype=torch.float64)
    counts = (numbers * 64).long().bincount(minlength=64)
    assert chi_square_p(counts.tolist(), [1 / 64] * 64) > WORST_P
    # Neighbours are independent: pairs fill the square evenly.
    cells = (numbers[:-1] * 8).long() * 8 + (numbers[1:] * 8).long()
    assert chi_square_p(cells.bincount(minlength=64).tolist(), [1 / 64] * 64) > WORST_P


@pytest.mark.parametrize("wrong", [{"temperature": 1.1}, {"top_k": 6}], ids=str)
def test_the_check_tells_a_wrong_distribution(wrong: dict[str, Any]) -> None:
    counts = frequencies(LOGITS, [row(i, seed=11, **wrong) for i in range(COUNT)])
    assert chi_square_p(counts, softmax(LOGITS, 1.0, ALL)) < WORST_P
