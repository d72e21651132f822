"""The roofline of the shapes that the audit compiles, and of attention with and without its matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernels.audit.configurations import configurations
from kernels.gpus import Gpu
from kernels.roofline import WORK, Limit, Work, attention_flash, limit, standard_attention

LONG: dict[str, Any] = {"num_heads": 64, "num_kv_heads": 64, "head_dim": 128, "num_tokens": 1 << 17}
"""128 K tokens, every head with keys of its own."""


@dataclass(frozen=True)
class Row:
    op: str
    configuration: str
    gpu: str
    work: Work
    limit: Limit | None
    """None: the GPU has no tensor cores for these products."""

    def as_json(self) -> dict[str, object]:
        told: dict[str, object] = {"op": self.op, "configuration": self.configuration, "gpu": self.gpu}
        told |= asdict(self.work) | {"bytes": self.work.num_bytes}
        if self.limit is None:
            return told | {"note": f"n/a: no tensor cores for {self.work.dtype}"}
        return told | {"limit_us": self.limit.seconds * 1e6} | asdict(self.limit)


@dataclass(frozen=True)
class Comparison:
    """Attention over `LONG` on one GPU, as three operations and as one."""

    gpu: str
    matrix_bytes: int
    """Scores of all heads, once."""
    standard_bytes: int
    flash_bytes: int
    flash_again_bytes: int
    """What tiles read again, if no cache helps."""
    standard_limit_s: float
    flash_limit_s: float

    @property
    def told(self) -> str:
        return (
            f"128 K tokens, 64 heads, bfloat16: a matrix of {self.matrix_bytes / 1e12:.1f} TB; written out,"
            f" attention moves {self.standard_bytes / 1e12:.1f} TB and takes"
            f" {self.standard_limit_s:.2f} s at least; flash moves {self.flash_bytes / 1e9:.1f} GB"
            f" (and {self.flash_again_bytes / 1e12:.1f} TB again from the L2 cache, or from memory if that"
            f" does not help) and takes {self.flash_limit_s:.2f} s at least"
        )

    def as_json(self) -> dict[str, object]:
        return {"op": "attention_flash", "configuration": "standard against flash"} | asdict(self)


def rows(ops: Sequence[str], gpu: Gpu) -> Iterator[Row]:
    """All ops if none is named."""
    for configuration in configurations(ops):
        work = WORK[configuration.op](**configuration.arguments)
        has_rate = work.dtype == "float32" or work.dtype in gpu.product_flops
        found = limit(work, gpu) if has_rate else None
        yield Row(configuration.op, configuration.name, gpu.name, work, found)


def comparison(gpu: Gpu) -> Comparison:
    standard = standard_attention(**LONG, dtype="bfloat16")
    flash = attention_flash(**LONG, is_causal=False, dtype="bfloat16")
    return Comparison(
        gpu=gpu.name,
        matrix_bytes=standard.bytes_by_part["scores"] // 4,
        standard_bytes=standard.num_bytes,
        flash_bytes=flash.num_bytes,
        flash_again_bytes=flash.again_bytes,
        standard_limit_s=limit(standard, gpu).seconds,
        flash_limit_s=limit(flash, gpu).seconds,
    )
