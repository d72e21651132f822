"""Beginnings of prompts that the operator made public: all tenants share their cached blocks.

A prompt is let into a public prefix only with all of its full blocks: a part of one would tell tenants
about each other how far they follow it. Tokens behind the last full block count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PublicPrefixes:
    """The prefixes of one cluster, in tokens. Of several that a prompt begins with, the longest holds."""

    def __init__(self, prefixes: Iterable[Sequence[int]] = ()) -> None:
        self._longest_first = sorted(map(tuple, prefixes), key=len, reverse=True)

    def num_blocks(self, prompt_token_ids: Sequence[int], block_size: int) -> int:
        """Full blocks of the prompt that are public. O(tokens) for each prefix that ends like the prompt."""
        for prefix in self._longest_first:
            num_tokens = len(prefix) // block_size * block_size
            if _begins_with(prompt_token_ids, prefix[:num_tokens]):
                return num_tokens // block_size
        return 0


def _begins_with(prompt: Sequence[int], prefix: tuple[int, ...]) -> bool:
    """The last token is asked first: most prompts are told apart by it."""
    end = len(prefix)
    return 0 < end <= len(prompt) and prompt[end - 1] == prefix[-1] and tuple(prompt[:end]) == prefix


NO_PREFIXES = PublicPrefixes()
