"""What a load test asks: the prompt of each request by its number, and what caches could save of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loadtest.prompts import text_prompt, token_prompt


class Prompt(NamedTuple):
    """Token ids, or the text of a user message; and the most tokens of its answer."""

    content: list[int] | str
    output_tokens: int


class Workload(Protocol):
    """Prompts follow from the seed and the number alone, and are made when they are asked for."""

    def prompt(self, number: int) -> Prompt: ...

    def ideal_hit_rate(self, num_requests: int) -> float | None:
        """Share of the first so many requests' prompt tokens that was computed before.

        What a cluster reaches whose caches forget nothing and which computes nothing twice, in blocks
        of the engine. None for prompts that have nothing in common.
        """
        ...


@dataclass(frozen=True)
class RandomPrompts:
    """Every prompt on its own: exactly `num_tokens` ids, or as a text so many words."""

    seed: int
    num_tokens: int
    output_tokens: int
    vocab_size: int
    is_text: bool = False

    def prompt(self, number: int) -> Prompt:
        if self.is_text:
            return Prompt(text_prompt(self.seed, number, self.num_tokens), self.output_tokens)
        return Prompt(token_prompt(self.seed, number, self.num_tokens, self.vocab_size), self.output_tokens)

    def ideal_hit_rate(self, num_requests: int) -> None:
        return None
