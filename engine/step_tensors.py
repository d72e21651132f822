"""A step's requests as tensors: flattened, in the plan's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from engine.block_pool import NULL_BLOCK
from engine.step import ScheduledRequest


@dataclass(frozen=True, slots=True)
class StepTensors:
    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    rows: Tensor  # [T] int64: each token's row in the plan
    block_table: Tensor  # [S, max_blocks] int32, padded with the null block
    slot_mapping: Tensor  # [T] int64
    cu_query_lens: list[int]  # S + 1
    seq_lens: list[int]  # S
    sampled_rows: list[int]  # R: rows of the plan that are sampled
    sampled_tokens: Tensor  # [R] int64: places in [T] whose logits are sampled

    @property
    def num_rows(self) -> int:  # S
        return len(self.seq_lens)


def step_tensors(scheduled: Sequence[ScheduledRequest], block_size: int, device: torch.device) -> StepTensors:
    """`scheduled` holds at least one request."""
    query_lens = [request.num_scheduled_tokens for request in scheduled]
    cu_query_lens = [0, *accumulate(query_lens)]
    max_blocks = max(len(request.block_table) for request in scheduled)
    padding = (NULL_BLOCK,) * max_blocks
    block_table = torch.tensor(
        [(request.block_table + padding)[:max_blocks] for request in scheduled], dtype=torch.int32
    )
    positions = torch.tensor(
        [
            position
            for request, query_len in zip(scheduled, query_lens, strict=True)
            for position in range(request.num_computed_tokens, request.num_computed_tokens + query_len)
        ]
    )
    rows = torch.repeat_interleave(torch.tensor(query_lens))
    blocks = block_table[rows, positions // block_size].long()
    sampled_rows = [row for row, request in enumerate(scheduled) if request.output_index is not None]
    return StepTensors(
        token_ids=torch.tensor(
            [token_id for request in scheduled for token_id in request.token_ids], device=device
        ),
        positions=positions.to(device),
        rows=rows.to(device),
        block_table=block_table.to(device),
        slot_mapping=(blocks * block_size + positions % block_size).to(device),
        cu_query_lens=cu_query_lens,
        seq_lens=[r.num_computed_tokens + n for r, n in zip(scheduled, query_lens, strict=True)],
        sampled_rows=sampled_rows,
        sampled_tokens=torch.tensor(
            [cu_query_lens[row + 1] - 1 for row in sampled_rows], dtype=torch.int64, device=device
        ),
    )
