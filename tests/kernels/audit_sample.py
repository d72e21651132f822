"""A small kernel for the audit to look at, and how its compiled texts under `data/audit/` were made:

python -m tests.kernels.audit_sample
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

from kernels.audit.facts import Compiled

STORED = Path(__file__).parent / "data" / "audit"
ARCH = "sm_90"
SHAPES = {
    "sound": {},
    "spilling": {"maxnreg": 32},
    "gapped": {"GAP": 2},
}
"""What is stored: as it should be; with too few registers; with weights that do not lie side by side."""

TEXTS = ("ttir", "ttgir", "ptx", "sass", "usage")
_UNTOLD = re.compile(r" ?loc\((?:[^()]|\([^()]*\))*\)|^#loc.*\n|^\s*\.loc .*\n|\s*//.*$", re.MULTILINE)


@triton.jit
def product_kernel(
    x_ptr, weight_ptr, out_ptr, num_steps, stride,
    ROWS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr, GAP: tl.constexpr,
):  # fmt: skip
    """x [ROWS, steps · STEP] · weight [steps · STEP, COLUMNS]"""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(num_steps):
        summed = step * STEP + tl.arange(0, STEP)
        x = tl.load(x_ptr + row * stride + summed[None, :])
        weight = tl.load(weight_ptr + (summed[:, None] * COLUMNS + column) * GAP)
        total += tl.dot(x, weight)
    tl.store(out_ptr + row * COLUMNS + column, total)


def launch(**options: Any) -> None:
    import torch

    x = torch.empty((16, 4096), dtype=torch.float16, device="meta")
    constants = {"ROWS": 16, "STEP": 32, "COLUMNS": 64, "GAP": 1}
    product_kernel[(1,)](x, x, x.float(), 4096 // 32, 4096, **constants | options)


def stored(name: str) -> Compiled:
    """As it was compiled, for `ARCH`."""
    fields = json.loads((STORED / f"{name}.json").read_text())
    texts = {key: "\n".join(fields[key]) for key in TEXTS}
    return Compiled(**fields | texts | {"grid": tuple(fields["grid"])})


def _written(compiled: Compiled) -> str:
    """Texts as lists of lines, without comments and what names places in the source or on this machine."""
    fields = asdict(compiled)
    texts = {key: _UNTOLD.sub("", fields[key]).splitlines() for key in TEXTS}
    written = json.dumps(fields | texts, indent=0) + "\n"
    return written.replace(f"{Path(__file__).parents[2]}/", "")


def main() -> None:
    from kernels.audit.stand_in import compiled_by

    for name, options in SHAPES.items():
        (compiled,) = compiled_by(partial(launch, **options), ARCH)
        (STORED / f"{name}.json").write_text(_written(compiled))


if __name__ == "__main__":
    main()
