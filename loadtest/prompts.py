"""Prompts that follow from a seed: the same seed and number, the same prompt, on every machine."""

from __future__ import annotations

from random import Random

FIRST_TOKEN_ID = 100
"""Below it lie the control tokens of the vocabularies that we know."""

_WORDS = ("water", "river", "stone", "light", "wheel", "mill", "field", "house", "garden", "bridge")


def token_prompt(seed: int, index: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Exactly `num_tokens` ids, each at least `FIRST_TOKEN_ID` and below `vocab_size`."""
    random = Random(f"{seed}:{index}")
    return [random.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(num_tokens)]


def text_prompt(seed: int, index: int, num_words: int) -> str:
    """`num_words` common words; a tokenizer makes about one token of each."""
    random = Random(f"{seed}:{index}")
    return " ".join(random.choice(_WORDS) for _ in range(num_words))
