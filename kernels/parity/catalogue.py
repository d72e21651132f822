"""Every op that has cases, by name. Holds no torch until cases are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.parity.case import OpCase

OPS = {
    "attention_decode": "kernels.parity.cases_attention_decode",
    "attention_flash": "kernels.parity.cases_attention_flash",
    "attention_prefill": "kernels.parity.cases_attention_prefill",
    "kv_write": "kernels.parity.cases_kv_write",
    "matmul_quant": "kernels.parity.cases_matmul_quant",
    "matmul_w8a8": "kernels.parity.cases_matmul_w8a8",
    "rms_norm": "kernels.parity.cases_rms_norm",
    "rope": "kernels.parity.cases_rope",
    "sample": "kernels.parity.cases_sample",
    "silu_mul": "kernels.parity.cases_silu_mul",
}
"""Op → a module with `cases(*, whole: bool) -> Iterator[OpCase]`: a quick grid, or the whole one, which has
the quick one's cases too."""


def cases_of(op: str, *, whole: bool) -> Iterator[OpCase]:
    """Raises KeyError for an op that is not there."""
    found: Iterator[OpCase] = importlib.import_module(OPS[op]).cases(whole=whole)
    return found
