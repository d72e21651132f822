"""Layouts, and Triton's own account of them in `data/audit/layouts.json`, made by its compiler:

python -m tests.kernels.audit_layouts
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernels.audit.layout import Layout

STORED = Path(__file__).parent / "data" / "audit" / "layouts.json"


def blocked(own: list[int], lanes: list[int], warps: list[int], order: list[int]) -> Layout:
    fields = {"sizePerThread": own, "threadsPerWarp": lanes, "warpsPerCTA": warps, "order": order}
    return Layout("blocked", fields)


def mma(major: int, warps: list[int], shape: list[int]) -> Layout:
    return Layout("nvidia_mma", {"versionMajor": major, "warpsPerCTA": warps, "instrShape": shape})


def cut(dim: int, parent: Layout) -> Layout:
    return Layout("slice", {"dim": dim, "parent": parent})


def operand(index: int, parent: Layout, width: int) -> Layout:
    return Layout("dot_op", {"opIdx": index, "parent": parent, "kWidth": width})


def swizzled(vec: int, per_phase: int, max_phase: int, *order: int) -> Layout:
    fields = {"vec": vec, "perPhase": per_phase, "maxPhase": max_phase, "order": list(order)}
    return Layout("swizzled_shared", fields)


def for_units(width: int, bits: int, *, transposed: bool = False) -> Layout:
    fields = {"swizzlingByteWidth": width, "transposed": transposed, "elementBitWidth": bits}
    return Layout("nvmma_shared", fields)


WIDE = blocked([1, 8], [2, 16], [4, 1], [1, 0])
NARROW = blocked([1, 1], [2, 16], [4, 1], [1, 0])
SQUARE = blocked([2, 2], [4, 8], [4, 1], [1, 0])
WARPS = mma(2, [1, 4], [16, 8])
GROUPS = mma(3, [8, 1], [16, 128, 16])
REGISTERS = [
    (WIDE, [64, 128]),
    (WIDE, [16, 64]),  # narrower than a warp is wide
    (blocked([1], [32], [4], [0]), [64]),
    (NARROW, [16, 16]),
    (SQUARE, [32, 16]),
    (WARPS, [16, 64]),
    (GROUPS, [128, 128]),
    (cut(1, WIDE), [64]),
    (cut(0, WARPS), [64]),
    (cut(1, GROUPS), [128]),
    (operand(0, WARPS, 2), [16, 128]),
    (operand(1, WARPS, 2), [128, 64]),
    (operand(1, WARPS, 4), [64, 64]),
    (operand(0, WARPS, 1), [16, 64]),
    (operand(0, GROUPS, 2), [128, 64]),
    (operand(0, NARROW, 0), [16, 64]),
    (operand(1, NARROW, 0), [64, 16]),
    (operand(1, SQUARE, 0), [16, 64]),
]
SHARED = [
    (swizzled(8, 1, 8, 1, 0), [64, 128], 16),
    (swizzled(8, 1, 8, 0, 1), [128, 64], 16),
    (swizzled(8, 2, 4, 1, 0), [32, 32], 16),
    (swizzled(8, 4, 2, 1, 0), [64, 16], 16),
    (swizzled(4, 1, 8, 1, 0), [32, 64], 32),
    (swizzled(1, 1, 1, 1, 0), [16, 64], 32),
    (swizzled(1, 1, 1, 0), [64], 32),
    (for_units(128, 16), [64, 128], 16),  # two panels
    (for_units(128, 16, transposed=True), [128, 64], 16),
    (for_units(128, 32), [64, 64], 32),
    (for_units(128, 8), [64, 256], 8),
    (for_units(64, 16), [64, 32], 16),
    (for_units(32, 16), [64, 16], 16),
    (for_units(0, 16), [64, 64], 16),
]
"""With the bits of an element."""


def main() -> None:
    from triton._C.libtriton import gluon_ir, ir, nvidia

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)

    def linear(layout: Layout, shape: list[int]) -> Any:
        return builder.to_linear_layout(_triton_s(layout)._to_ir(builder), shape)

    registers = [linear(layout, shape) for layout, shape in REGISTERS]
    shared = [linear(layout, shape) for layout, shape, _ in SHARED]
    told = {
        "registers": [{"lanes": one.lane_bases, "registers": one.reg_bases} for one in registers],
        "shared": [one.offset_bases for one in shared],
    }
    STORED.write_text(json.dumps(told, indent=1) + "\n")


def _triton_s(layout: Layout) -> Any:
    from triton.experimental.gluon import language as gl

    f = layout.fields
    made = {
        "blocked": lambda: gl.BlockedLayout(
            f["sizePerThread"], f["threadsPerWarp"], f["warpsPerCTA"], f["order"]
        ),
        "nvidia_mma": lambda: gl.NVMMADistributedLayout(
            [f["versionMajor"], 0], f["warpsPerCTA"], f["instrShape"]
        ),
        "slice": lambda: gl.SliceLayout(f["dim"], _triton_s(f["parent"])),
        "dot_op": lambda: gl.DotOperandLayout(f["opIdx"], _triton_s(f["parent"]), f["kWidth"]),
        "swizzled_shared": lambda: gl.SwizzledSharedLayout(
            f["vec"], f["perPhase"], f["maxPhase"], f["order"]
        ),
        "nvmma_shared": lambda: gl.NVMMASharedLayout(
            f["swizzlingByteWidth"], f["elementBitWidth"], 2, transposed=f["transposed"]
        ),
    }
    return made[layout.kind]()


if __name__ == "__main__":
    main()
