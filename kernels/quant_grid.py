"""The sixteen values, evenly apart, that lose least of a group's weights.

From the least weight to the greatest, every one is right to half a step, but for a few that lie far out all
others pay with a wide step. So narrower spans are tried, too, each refitted: offset and scale by least
squares to the numbers that the weights were rounded to, then rounded again (Lloyd's iteration, "Least squares
quantization in PCM", 1982, on values evenly apart). Of all of them, the full span included, the least squared
error wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_INT4 = 15
SPANS = (1.0, 0.9, 0.8, 0.7)
"""Of a group's range, around its middle."""
NUM_REFITS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Weights [N, groups, group] as numbers · scale + offset, with what that loses."""

    numbers: Tensor  # [N, groups, group] float32, whole, 0..15
    scales: Tensor  # [N, groups]
    offsets: Tensor  # [N, groups]
    squared_error: Tensor  # [N, groups] float32


def int4_grid(grouped: Tensor, dtype: torch.dtype) -> Grid:
    """Of [N, groups, group] float32; scales and offsets in `dtype`, in which they may not be finite."""
    low, high = grouped.amin(dim=2), grouped.amax(dim=2)
    best = _full_grid(grouped, low, high, dtype)
    for grid in _other_grids(grouped, low, high, dtype):
        best = _better(best, grid)
    return best


def _full_grid(grouped: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> Grid:
    """The offset rounded down, the scale up: nothing lies beyond the grid's ends."""
    offsets = -rounded_up(-low, dtype)
    return _rounded_to(grouped, rounded_up((high - offsets.float()) / LARGEST_INT4, dtype), offsets)


def _other_grids(grouped: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> Iterator[Grid]:
    for span in SPANS:
        step = (high - low) * (span / LARGEST_INT4)
        grid = _rounded_to(grouped, step.to(dtype), ((low + high - step * LARGEST_INT4) / 2).to(dtype))
        for _ in range(NUM_REFITS):
            grid = _refitted(grouped, grid, dtype)
        yield grid


def _refitted(grouped: Tensor, grid: Grid, dtype: torch.dtype) -> Grid:
    mean, mean_number = grouped.mean(dim=2), grid.numbers.mean(dim=2)
    above = grid.numbers - mean_number[..., None]
    scales = (above * grouped).sum(dim=2) / above.square().sum(dim=2).clamp(
        min=torch.finfo(torch.float32).tiny
    )
    return _rounded_to(grouped, scales.to(dtype), (mean - scales * mean_number).to(dtype))


def _rounded_to(grouped: Tensor, scales: Tensor, offsets: Tensor) -> Grid:
    step, offset = scales.float()[..., None], offsets.float()[..., None]
    numbers = ((grouped - offset) / divisor(scales)).round_().clamp_(0, LARGEST_INT4)
    lost = (numbers * step + offset - grouped).square_().sum(dim=2)
    return Grid(numbers, scales, offsets, lost)


def _better(one: Grid, other: Grid) -> Grid:
    """Group by group; where an error is no number, the first."""
    is_better = other.squared_error < one.squared_error
    return Grid(
        torch.where(is_better[..., None], other.numbers, one.numbers),
        torch.where(is_better, other.scales, one.scales),
        torch.where(is_better, other.offsets, one.offsets),
        torch.where(is_better, other.squared_error, one.squared_error),
    )


def divisor(scales: Tensor) -> Tensor:
    """[N, groups, 1] float32: what stands for a group of zeros is divided by 1."""
    wide = scales.float()
    return torch.where(wide == 0.0, 1.0, wide)[..., None]


def rounded_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 → `dtype`, never below x: what it covers stays covered."""
    near = x.to(dtype)
    above = torch.nextafter(near, torch.full_like(near, torch.inf))
    return torch.where(near.float() < x, above, near)
