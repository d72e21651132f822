"""How many processors a device has: that many programs run at a time, or a few times as many."""

from __future__ import annotations

from functools import cache

import torch

WITHOUT_A_GPU = 132


@cache
def num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return WITHOUT_A_GPU
    return torch.cuda.get_device_properties(device).multi_processor_count
