"""A trace's prompts made of token ids again, sharing exactly what the traced ones shared."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from engine.config import BLOCK_SIZE
from loadtest.prompts import FIRST_TOKEN_ID
from loadtest.trace import TRACE_BLOCK_TOKENS, TraceRow
from loadtest.workload import Prompt

_ROOT = 0


class TracePrompts:
    """Holds the rows; a prompt is made when it is asked for. Answers end at `max_output_tokens`, if given."""

    def __init__(
        self, rows: Sequence[TraceRow], *, seed: int, vocab_size: int, max_output_tokens: int | None = None
    ) -> None:
        self._rows = rows
        self._seed = seed
        self._token_ids = range(FIRST_TOKEN_ID, vocab_size)
        self._max_output_tokens = max_output_tokens

    def prompt(self, number: int) -> Prompt:
        row = self._rows[number]
        tokens = [token for hash_id in row.hash_ids for token in self._block(hash_id)]
        most = self._max_output_tokens
        return Prompt(
            tokens[: row.input_length], row.output_length if most is None else min(row.output_length, most)
        )

    def _block(self, hash_id: int) -> list[int]:
        return Random(f"{self._seed}:block:{hash_id}").choices(self._token_ids, k=TRACE_BLOCK_TOKENS)

    def ideal_hit_rate(self, num_requests: int) -> float | None:
        rows = self._rows[:num_requests]
        seen = _SeenPrefixes()
        cached_tokens = sum(seen.add(row) for row in rows)
        return cached_tokens / sum(row.input_length for row in rows) if rows else None


class _SeenPrefixes:
    """Every prompt so far, a tree whose edges are hash ids; a node knows how much of its block was seen."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._num_tokens = [0]

    def add(self, row: TraceRow) -> int:
        """Tokens at its beginning that were seen before, as the engine's cache counts them."""
        node, num_matched = _ROOT, 0
        for index, hash_id in enumerate(row.hash_ids):
            num_tokens = min(TRACE_BLOCK_TOKENS, row.input_length - index * TRACE_BLOCK_TOKENS)
            node = self._child(node, hash_id)
            num_matched += min(num_tokens, self._num_tokens[node])  # below a node that is new, all are
            self._num_tokens[node] = max(self._num_tokens[node], num_tokens)
        most = (row.input_length - 1) // BLOCK_SIZE  # the last token is always computed
        return min(num_matched // BLOCK_SIZE, most) * BLOCK_SIZE

    def _child(self, node: int, hash_id: int) -> int:
        child = self._children.setdefault((node, hash_id), len(self._num_tokens))
        if child == len(self._num_tokens):
            self._num_tokens.append(0)
        return child
