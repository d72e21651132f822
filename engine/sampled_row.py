"""How one row of logits is sampled: a request's parameters, and the row's place in its output."""

from __future__ import annotations

from dataclasses import dataclass

from engine.philox import uniform
from engine.request import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this take the highest logit."""


@dataclass(frozen=True, slots=True)
class SampledRow:
    params: SamplingParams
    output_index: int
    sibling: int
    history: tuple[int, ...] = ()
    """Prompt + output so far, where penalties read it; the last `output_index` are output."""
    masked_token_ids: tuple[int, ...] = ()
    """Never drawn here."""

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW

    @property
    def is_processed(self) -> bool:
        """Whether its logits change before anything is drawn from them."""
        return bool(self.params.logit_bias or self.params.has_penalties or self.masked_token_ids)

    @property
    def uniform(self) -> float:
        """The number in [0, 1) that it is drawn with."""
        return uniform(self.params.seed, self.output_index, self.sibling)
