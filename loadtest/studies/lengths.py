"""How long real requests are: two tables of quantiles, so that no study needs the data itself.

From the conversation half of "Azure LLM inference trace 2023" (github.com/Azure/AzurePublicDataset,
CC-BY-4.0): the 17,754 of its 19,366 rows whose prompt and output fit into a context of 4,096 tokens.
Prompt and output are drawn independently; in the data their correlation is 0.2.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

CONTEXT = 4096
"""Prompt + output never exceed it: the longest draw is 4,075 + 1,000, cut to this."""

# Quantiles 0 %, 5 %, …, 100 % (`ContextTokens`, `GeneratedTokens`).
_PROMPT_TOKENS = (
    2, 181, 205, 309, 382, 393, 400, 407, 422, 877, 992,
    1023, 1045, 1069, 1093, 1120, 1163, 1307, 1436, 2229, 4075,
)  # fmt: skip
_OUTPUT_TOKENS = (
    7, 50, 66, 77, 85, 90, 95, 102, 110, 125, 144,
    166, 204, 375, 391, 396, 403, 414, 427, 458, 1000,
)  # fmt: skip


class Lengths(NamedTuple):
    prompt_tokens: int
    output_tokens: int


def draw_lengths(rng: Random, count: int) -> list[Lengths]:
    return [_draw(rng) for _ in range(count)]


def _draw(rng: Random) -> Lengths:
    prompt_tokens = _quantile(_PROMPT_TOKENS, rng.random())
    return Lengths(prompt_tokens, min(_quantile(_OUTPUT_TOKENS, rng.random()), CONTEXT - prompt_tokens))


def _quantile(table: tuple[int, ...], share: float) -> int:
    """`share` in [0, 1), interpolated between the table's neighbours."""
    place = share * (len(table) - 1)
    below = int(place)
    return round(table[below] + (place - below) * (table[below + 1] - table[below]))
