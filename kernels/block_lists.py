"""A mask of attention as lists: which blocks of keys each block of queries visits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockLists:
    """For S sequences, up to Q blocks of queries each, up to V visits of each block of queries.

    Blocks of queries are counted from a sequence's first query of this batch, blocks of keys from its
    first token. Visits from `num_visits` on are not read. A block of keys is listed at most once.
    A full visit sees every key of the block that the sequence has, also those behind the query; any
    other visit sees those that causality and the window leave.
    """

    query_block_size: int
    key_block_size: int
    num_visits: Tensor  # [S, Q] int32
    key_blocks: Tensor  # [S, Q, V] int32
    is_full: Tensor  # [S, Q, V] bool

    def seen(self, sequence: int, causal: Tensor) -> Tensor:
        """`causal` [queries, keys] of one sequence, with these lists in its place."""
        seen = torch.zeros_like(causal)
        for query_block in range(-(-len(causal) // self.query_block_size)):
            rows = _span(query_block, self.query_block_size)
            for visit in range(int(self.num_visits[sequence, query_block])):
                keys = _span(int(self.key_blocks[sequence, query_block, visit]), self.key_block_size)
                is_full = bool(self.is_full[sequence, query_block, visit])
                seen[rows, keys] = True if is_full else causal[rows, keys]
        return seen


def _span(block: int, size: int) -> slice:
    return slice(block * size, (block + 1) * size)
