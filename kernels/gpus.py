"""GPUs by their data sheets: what bounds a kernel however it is written.

Rates are those of dense products (data sheets also print the double, for sparse ones), bandwidth that of
the memory; both are peaks, and what is reached on a card at its power limit is lower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLOPS_A_CYCLE = {"sm_80": 2048, "sm_89": 1024, "sm_90": 4096, "sm_100": 8192}
"""Of a processor's tensor cores, with operands of 16 bits."""
TERA = 1e12
GIGA = 1e9


def arch_number(arch: str) -> int:
    """sm_90 → 90. Later architectures have larger ones; the last digit is the minor version."""
    return int(arch.removeprefix("sm_"))


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    arch: str
    processors: int
    bandwidth: float
    """Bytes a second."""
    product_flops: Mapping[str, float]
    """A second, of tensor cores, by the operands' type; absent: this GPU has none for it."""
    other_flops: float
    """A second, of float32 outside tensor cores."""
    l2_bytes: int

    @property
    def clock(self) -> float:
        """Cycles a second at which the rate of products is what the data sheet says."""
        return self.product_flops["float16"] / (self.processors * FLOPS_A_CYCLE[self.arch])

    def rate_of(self, dtype: str) -> float:
        """Of products of `dtype`; float32 keeps its bits and goes without tensor cores."""
        return self.other_flops if dtype == "float32" else self.product_flops[dtype]


def _gpu(
    name: str, arch: str, processors: int, gigabytes_a_s: float, half: float, byte: float, single: float,
    l2_mib: int, *, has_float8: bool = True,
) -> Gpu:  # fmt: skip
    """Rates in TFLOP/s: of 16-bit types, of 8-bit types, of float32."""
    products = {"float16": half * TERA, "bfloat16": half * TERA, "int8": byte * TERA}
    if has_float8:
        products["float8_e4m3fn"] = byte * TERA
    return Gpu(name, arch, processors, gigabytes_a_s * GIGA, products, single * TERA, l2_mib << 20)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", "sm_80", 108, 2039, 312, 624, 19.5, 40, has_float8=False),  # SXM, 80 GB
        _gpu("l4", "sm_89", 58, 300, 121, 242.5, 30.3, 48),
        _gpu("h100", "sm_90", 132, 3350, 989.4, 1978.9, 66.9, 50),  # SXM, 80 GB
        _gpu("h200", "sm_90", 132, 4800, 989.4, 1978.9, 66.9, 50),  # SXM
        _gpu("b200", "sm_100", 148, 8000, 2250, 4500, 75, 126),
    )
}
