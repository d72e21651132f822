"""What this machine can do, measured in the process that is judged by it: with its threads, its torch.

The best of several tries each: a limit is what was reached once, and noise only ever takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from loadtest.limits import MachineLimits

_READ_BYTES = 128 * 2**20
"""More than the last-level cache of most machines. A server whose cores share a larger one reads from the
cache, faster than its memory allows: limits are then too high, and shares of them too low."""
_ROWS, _SIDE = 1024, 2048
_PROBE_S = 0.4
"""Of each kind of try."""


def probe_machine(dtype_name: str, device: str) -> MachineLimits:
    """In the format `dtype_name`. Takes some 2 s, and 200 MiB meanwhile."""
    dtype = getattr(torch, dtype_name)
    assert isinstance(dtype, torch.dtype)
    matrix = torch.ones(_READ_BYTES // (_SIDE * dtype.itemsize), _SIDE, dtype=dtype, device=device)
    rows = torch.ones(_ROWS, _SIDE, dtype=dtype, device=device)
    square = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device)
    with torch.inference_mode():
        read_s = min(
            _best_s(lambda: torch.nn.functional.linear(rows[:1], matrix)),
            _best_s(lambda: matrix.max()),
        )
        multiply_s = _best_s(lambda: torch.nn.functional.linear(rows, square))
    return MachineLimits(
        bytes_per_s=matrix.nbytes / read_s,
        flops_per_s=2 * _ROWS * _SIDE * _SIDE / multiply_s,
    )


def _best_s(work: Callable[[], Tensor]) -> float:
    """Shortest of at least two tries, the first not counted: it pays for memory and kernel choice."""
    _wait(work())
    tries: list[float] = []
    while sum(tries) < _PROBE_S or len(tries) < 2:
        begun = time.perf_counter()
        _wait(work())
        tries.append(time.perf_counter() - begun)
    return min(tries)


def _wait(result: Tensor) -> None:
    if result.is_cuda:
        torch.cuda.synchronize(result.device)
