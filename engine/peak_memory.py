"""How much memory a piece of work took at its height: resident on a CPU, allocated on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

_PROC = Path("/proc/self")


def peak_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """Runs `work`; the most it held beside what was held before. None where nothing tells it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    _return_free_memory()
    try:
        (_PROC / "clear_refs").write_text("5")  # the high-water mark falls to what is held now
        before = _high_water_bytes()
    except (OSError, KeyError):
        work()
        return None
    work()
    return _high_water_bytes() - before


def _return_free_memory() -> None:
    """What the allocator keeps for later would hide what is taken anew."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _high_water_bytes() -> int:
    fields = dict(line.split(":", 1) for line in (_PROC / "status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024
