"""How often two models say the same: token by token behind the same words, and left to themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.request import SamplingParams
from engine.sampled_row import SampledRow
from engine.sampler import sample

Logits = Callable[[Sequence[int]], Tensor]
"""Of a model: token ids → [T, vocab]."""


def share_equal(first: Sequence[int], second: Sequence[int]) -> float:
    """Of positions; both have the same."""
    return sum(a == b for a, b in zip(first, second, strict=True)) / len(first)


def first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens before the two part; all of them if they do not."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), len(first))


def draws(
    logits: Logits, prompt: Sequence[int], continuation: Sequence[int], temperature: float, seed: int
) -> list[int]:
    """What a model draws at each position of a given continuation of the prompt.

    Output i is drawn with the Philox number of (seed, i), whichever model draws: where two distributions are
    equal, so are the draws.
    """
    told = logits((*prompt, *continuation[:-1]))[len(prompt) - 1 :]
    params = SamplingParams(max_tokens=len(continuation), temperature=temperature, seed=seed)
    drawn = sample(told, [SampledRow(params, index, 0) for index in range(len(continuation))])
    return [-1 if draw.token_id is None else draw.token_id for draw in drawn]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over seeds."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        values = list(values)
        return cls(sum(values) / len(values), min(values), max(values))
