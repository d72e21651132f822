"""Steps of decodes alone, padded to few sizes and launched as one CUDA graph each.

At small batches a GPU waits for the host, which launches some ten kernels a layer. A graph launches them
all at once, but always on the same memory and for the same shapes: hence the buffers and the sizes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from engine.step_tensors import StepTensors

Work = Callable[[], Tensor]
Capture = Callable[[Work], Work]
"""Work → the same work, launched as a whole."""


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """A step of S decodes, all of it on the device. A row of zeros is padding: it reads no key and writes
    into the null block."""

    token_ids: Tensor  # [S] int64
    positions: Tensor  # [S] int64
    block_table: Tensor  # [S, max_blocks] int32
    slot_mapping: Tensor  # [S] int64
    seq_lens: Tensor  # [S] int32

    def first(self, num_rows: int) -> DecodeInputs:
        """Views of the first rows."""
        return DecodeInputs(*(getattr(self, field.name)[:num_rows] for field in fields(self)))


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every 8th up to 64 and every 32nd: padding is at most half of few rows, a third of
    more. The largest is `max_num_seqs`."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, max_num_seqs, 32)]
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


class PaddedDecodes:
    """Owns the buffers and what was captured on them, one size at a time.

    What `run` returns is overwritten by the next `run`.
    """

    def __init__(
        self,
        forward: Callable[[DecodeInputs], Tensor],  # → [S, hidden]
        *,
        max_num_seqs: int,
        max_blocks: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        def zeros(dtype: torch.dtype, *columns: int) -> Tensor:
            return torch.zeros((max_num_seqs, *columns), dtype=dtype, device=device)

        self.sizes = graph_sizes(max_num_seqs)
        self._inputs = DecodeInputs(
            token_ids=zeros(torch.int64),
            positions=zeros(torch.int64),
            block_table=zeros(torch.int32, max_blocks),
            slot_mapping=zeros(torch.int64),
            seq_lens=zeros(torch.int32),
        )
        self._forward = forward
        self._capture = capture
        self._launches: dict[int, Work] = {}

    def capture_all(self) -> None:
        """The largest first: the others find its memory free to use."""
        self._fill_nothing()
        for size in reversed(self.sizes):
            self._launch_of(size)

    def covers(self, step: StepTensors) -> bool:
        return (
            step.num_rows == len(step.token_ids) <= self.sizes[-1]
            and step.block_table.shape[1] <= self._inputs.block_table.shape[1]
        )

    def run(self, step: StepTensors) -> Tensor:  # [S, hidden]
        """Of a step that it covers."""
        size = self.sizes[bisect_left(self.sizes, step.num_rows)]
        self._fill(step)
        return self._launch_of(size)()[: step.num_rows]

    def _fill(self, step: StepTensors) -> None:
        """Rows behind the step's become padding; a table's entries behind a row's own are not read."""
        self._fill_nothing()
        rows = self._inputs.first(step.num_rows)
        rows.token_ids.copy_(step.token_ids)
        rows.positions.copy_(step.positions)
        rows.block_table[:, : step.block_table.shape[1]].copy_(step.block_table)
        rows.slot_mapping.copy_(step.slot_mapping)
        rows.seq_lens.copy_(torch.tensor(step.seq_lens, dtype=torch.int32))

    def _fill_nothing(self) -> None:
        inputs = self._inputs
        for buffer in (inputs.token_ids, inputs.positions, inputs.slot_mapping, inputs.seq_lens):
            buffer.zero_()

    def _launch_of(self, size: int) -> Work:
        if size not in self._launches:
            inputs = self._inputs.first(size)
            self._launches[size] = self._capture(lambda: self._forward(inputs))
        return self._launches[size]
