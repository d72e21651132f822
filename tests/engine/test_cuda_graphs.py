"""Padded steps of decodes: which size, what is in the buffers, and that they are captured once a size."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.cuda_graphs import DecodeInputs, PaddedDecodes, Work, graph_sizes
from engine.request import SamplingParams
from engine.step import ScheduledRequest
from engine.step_tensors import StepTensors, step_tensors

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class Steps:
    """Padded decodes whose forward pass keeps what it was given; its hidden states are the tokens."""

    def __init__(self) -> None:
        self.seen: list[DecodeInputs] = []
        self.captured: list[int] = []
        self.padded = PaddedDecodes(
            self._forward, max_num_seqs=6, max_blocks=3, device=CPU, capture=self._capture
        )

    def _forward(self, inputs: DecodeInputs) -> Tensor:
        self.seen.append(DecodeInputs(*(t.clone() for t in vars_of(inputs))))
        return inputs.token_ids[:, None].float()

    def _capture(self, work: Work) -> Work:
        work()
        self.captured.append(len(self.seen.pop().token_ids))
        return work


def vars_of(inputs: DecodeInputs) -> list[Tensor]:
    return [getattr(inputs, name) for name in DecodeInputs.__slots__]


def step(*lengths: int, query_len: int = 1) -> StepTensors:
    """Sequences of these lengths, with blocks of two slots from 1 on; tokens are 100 and up."""
    rows = [
        ScheduledRequest(
            f"r{i}",
            (100 + i,) * query_len,
            length - query_len,
            tuple(range(1, -(-length // 2) + 1)),
            0,
            GREEDY,
        )
        for i, length in enumerate(lengths)
    ]
    return step_tensors(rows, 2, CPU)


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, [1]),
        (4, [1, 2, 4]),
        (6, [1, 2, 4, 6]),
        (32, [1, 2, 4, 8, 16, 24, 32]),
        (100, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96, 100]),
    ],
)
def test_sizes_end_with_all_seats(max_num_seqs: int, sizes: Sequence[int]) -> None:
    assert list(graph_sizes(max_num_seqs)) == sizes


def test_every_size_is_captured_once_the_largest_first() -> None:
    steps = Steps()
    steps.padded.capture_all()
    for count in (1, 2, 3, 5, 6):
        steps.padded.run(step(*[3] * count))
    assert steps.captured == [6, 4, 2, 1]
    assert [len(inputs.token_ids) for inputs in steps.seen] == [1, 2, 4, 6, 6]


def test_a_row_behind_the_step_is_padding_whatever_was_there_before() -> None:
    steps = Steps()
    steps.padded.run(step(5, 6, 5, 6))
    hidden = steps.padded.run(step(4, 1, 2))
    inputs = steps.seen[-1]
    assert hidden.tolist() == [[100.0], [101.0], [102.0]]
    assert inputs.token_ids.tolist() == [100, 101, 102, 0]
    assert inputs.positions.tolist() == [3, 0, 1, 0]
    assert inputs.slot_mapping.tolist() == [5, 2, 3, 0]
    assert inputs.seq_lens.tolist() == [4, 1, 2, 0]
    assert inputs.block_table[:3, :2].tolist() == [[1, 2], [1, 0], [1, 0]]


def test_only_decodes_that_fit_are_covered() -> None:
    padded = Steps().padded
    assert padded.covers(step(*[6] * 6))
    assert not padded.covers(step(*[6] * 7)), "more rows than the buffers have"
    assert not padded.covers(step(7)), "a longer table"
    assert not padded.covers(step(6, query_len=2)), "a chunk"
