"""Prompts that begin alike: a few long prefixes, as of system prompts, each with ever new suffixes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from engine.config import BLOCK_SIZE
from loadtest.prompts import token_prompt
from loadtest.workload import Prompt


@dataclass(frozen=True)
class SharedPrefix:
    """Each request draws one of `num_prefixes`, all alike, or the first with chance `hot_share`."""

    seed: int
    num_prefixes: int
    prefix_tokens: int
    suffix_tokens: int
    output_tokens: int
    vocab_size: int
    hot_share: float | None = None

    def __post_init__(self) -> None:
        if self.hot_share is not None and self.num_prefixes < 2:
            raise ValueError("one prefix cannot be hotter than others: there must be two at least")

    def prompt(self, number: int) -> Prompt:
        suffix = token_prompt(self.seed, number, self.suffix_tokens, self.vocab_size)
        return Prompt(self._prefix(self.prefix_of(number)) + suffix, self.output_tokens)

    def prefix_of(self, number: int) -> int:
        random = Random(f"{self.seed}:prefix of:{number}")
        if self.hot_share is None:
            return random.randrange(self.num_prefixes)
        return 0 if random.random() < self.hot_share else random.randrange(1, self.num_prefixes)

    def ideal_hit_rate(self, num_requests: int) -> float | None:
        """Each prefix computed once, its whole blocks cached from then on; suffixes are never shared."""
        if num_requests == 0:
            return None
        num_first = len({self.prefix_of(number) for number in range(num_requests)})
        cached_tokens = (num_requests - num_first) * (self.prefix_tokens // BLOCK_SIZE * BLOCK_SIZE)
        return cached_tokens / (num_requests * (self.prefix_tokens + self.suffix_tokens))

    def _prefix(self, index: int) -> list[int]:
        return _prefix(self.seed, index, self.prefix_tokens, self.vocab_size)


@cache
def _prefix(seed: int, index: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Made once, when it is first asked for; numbers below 0 belong to no request."""
    return token_prompt(seed, -1 - index, num_tokens, vocab_size)
