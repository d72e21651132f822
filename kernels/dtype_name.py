"""Types by name, as tables, cases and tuned entries write them."""

from __future__ import annotations

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float16 → float16"""
    return str(dtype).removeprefix("torch.")
