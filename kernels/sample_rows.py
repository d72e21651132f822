"""What `sample` is given for its rows and gives back, and what its kernels leave for one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

DRAWN, NEAR_TIE, NOT_FINITE = 0, 1, 2
"""Outcomes of a row. A near tie may be drawn otherwise elsewhere. Where a logit is NaN or +inf, or none is
above -inf, after bias and penalties, there is no token; 0 stands in its place, for a model to go on with."""


class RowSampling(NamedTuple):
    """How each row is drawn; [R] each."""

    temperature: Tensor  # float64
    top_k: Tensor  # int32; 0 is all
    top_p: Tensor  # float64
    min_p: Tensor  # float64
    seed: Tensor  # int64: the bits of a number mod 2^64
    output_index: Tensor  # int32
    sibling: Tensor  # int32


class LogitEdits(NamedTuple):
    """What changes logits before the draw. A row whose penalties are 1, 0 and 0 reads no counts."""

    bias_begins: Tensor  # [R + 1] int32: where each row's entries begin
    bias_token_ids: Tensor  # [N] int32; an id outside the vocabulary does nothing
    biases: Tensor  # [N] float64, added; -inf masks
    repetition: Tensor  # [R] float64
    presence: Tensor  # [R] float64
    frequency: Tensor  # [R] float64
    output_counts: Tensor  # [R, V] int32: how often each token is in the output
    is_in_prompt: Tensor  # [R, V] bool


class Sampled(NamedTuple):
    token_ids: Tensor  # [R] int64
    outcomes: Tensor  # [R] int8


@dataclass(frozen=True, slots=True)
class SampleTile:
    """How much is listed, and how a row is cut. The token does not depend on it."""

    num_listed: int = 1024
    capacity: int = 4096
    """Of the list: a group that reaches the bound may hold more than one candidate that does."""
    num_ids: int = 2048
    """Ids a turn; a power of two."""
    num_warps: int = 8

    def group_size(self, vocab_size: int) -> int:
        """Ids of one group: a power of two, so that there are 2 to 4 times as many groups as are listed; more
        where a turn would not hold a group."""
        most = min(vocab_size // (2 * self.num_listed), self.num_ids)
        return 1 << max(most, 1).bit_length() - 1


class Workspace(NamedTuple):
    """What the kernels leave for one another. Keys are int32, with edits int64."""

    maxima: Tensor  # [R, groups] the key of each group's best logit
    states: (
        Tensor  # [R, 5] int64: keys of the best and of the bound; number and weight of the list; all weight
    )
    listed_keys: Tensor  # [R, capacity]
    listed_weights: Tensor  # [R, capacity] int64
    listed_ids: Tensor  # [R, capacity] int32, ascending


def default_tile(*, is_edited: bool) -> SampleTile:
    """Edited logits are float64, which takes twice the registers."""
    return SampleTile(num_ids=1024 if is_edited else 2048)


def make_sampled(num_rows: int, device: torch.device) -> Sampled:
    return Sampled(
        torch.empty(num_rows, dtype=torch.int64, device=device),
        torch.empty(num_rows, dtype=torch.int8, device=device),
    )


def make_workspace(
    shape: tuple[int, ...],  # of the logits: R, V
    device: torch.device,
    tile: SampleTile | None = None,
    *,
    is_edited: bool,
) -> Workspace:
    """Serves any call with as many rows or fewer; all else must be the same."""
    num_rows, vocab_size = shape
    tile = tile or default_tile(is_edited=is_edited)
    key_type = torch.int64 if is_edited else torch.int32
    num_groups = -(-vocab_size // tile.group_size(vocab_size))
    return Workspace(
        torch.empty(num_rows, num_groups, dtype=key_type, device=device),
        torch.empty(num_rows, 5, dtype=torch.int64, device=device),
        torch.empty(num_rows, tile.capacity, dtype=key_type, device=device),
        torch.empty(num_rows, tile.capacity, dtype=torch.int64, device=device),
        torch.empty(num_rows, tile.capacity, dtype=torch.int32, device=device),
    )


def check_shapes(logits: Tensor, sampling: RowSampling, edits: LogitEdits | None) -> None:
    """Raises ValueError."""
    num_rows = len(logits)
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError("logits must be float32, and their rows contiguous")
    for name, tensor in sampling._asdict().items():
        if tensor.shape != (num_rows,):
            raise ValueError(f"{name} is not of {num_rows} rows")
    for name in ("output_counts", "is_in_prompt") if edits is not None else ():
        tensor = getattr(edits, name)
        if tensor.shape != logits.shape or not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, and of the logits' shape")
