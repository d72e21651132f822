"""How well a model foresees a text, and which token it holds for the likeliest at each position."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, log

import torch
from torch import Tensor

_LARGEST_EXPONENT = log(sys.float_info.max)


@dataclass(frozen=True, slots=True)
class Reading:
    """Of a text, window by window; each window's first token is given."""

    losses: tuple[float, ...]
    """-log p (natural) of each token that was there."""
    likeliest: tuple[int, ...]
    """At the same positions."""

    @property
    def perplexity(self) -> float:
        """Infinity, too, where it is beyond what a float holds."""
        loss = sum(self.losses) / len(self.losses)
        return inf if loss > _LARGEST_EXPONENT else exp(loss)


def read(windows: Iterable[tuple[Sequence[int], Tensor]]) -> Reading:
    """Of (token ids, logits [T, vocab] at each of them)."""
    losses: list[float] = []
    likeliest: list[int] = []
    for token_ids, logits in windows:
        before, following = logits[:-1], torch.tensor(token_ids[1:], device=logits.device)
        losses += torch.nn.functional.cross_entropy(before, following, reduction="none").tolist()
        likeliest += before.argmax(dim=-1).tolist()
    return Reading(tuple(losses), tuple(likeliest))
