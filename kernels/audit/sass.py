"""The GPU's own instructions as nvdisasm prints them: loops, tensor-core and other mathematics, memory.

What is counted is static: instructions in the code, not how often they run. In a loop that is the same but
for branches inside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernels.audit.loops import loop_bodies

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_TENSOR = re.compile(r"(?:[HIQOD]G?|UTC[HIQO])MMA\b")
_WARP_PRODUCT = re.compile(r"[A-Z]MMA\.(?:SP\.)?(?:168(\d+)|884)\b")
_GROUP_PRODUCT = re.compile(r"[A-Z]GMMA\.(\d+)x(\d+)x(\d+)")
WARP_LANES = 32
WARPS_A_GROUP = 4
LANE_FLOPS = {
    "FADD": 1, "FMUL": 1, "FFMA": 2, "FMNMX": 1, "FMNMX3": 2, "MUFU": 1, "FSET": 1,
    "FADD2": 2, "FMUL2": 2, "FFMA2": 4, "HADD2": 2, "HMUL2": 2, "HFMA2": 4, "HMNMX2": 2,
    "DADD": 1, "DMUL": 1, "DFMA": 2,
}  # fmt: skip
"""Of one lane. MUFU is an approximation such as 2^x, counted as one."""
_GLOBAL_READS = ("LDG", "LDGSTS", "UBLKCP", "UTMALDG", "UBLKPF")


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    opcode: str
    """With its modifiers: HMMA.16816.F32."""
    operands: str
    is_predicated: bool

    @property
    def name(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def is_tensor(self) -> bool:
        return _TENSOR.match(self.opcode) is not None

    @property
    def lane_flops(self) -> int:
        """Outside tensor cores. A product with nothing (HFMA2 of RZ) only loads a constant."""
        is_constant = self.name == "HFMA2" and self.operands.count("RZ") >= 2
        return 0 if is_constant else LANE_FLOPS.get(self.name, 0)

    @property
    def reads_global(self) -> bool:
        return self.name in _GLOBAL_READS


@dataclass(frozen=True, slots=True)
class Program:
    instructions: Sequence[Instruction]
    loops: Sequence[Sequence[Instruction]]
    """The innermost of those that compute or load."""

    def hottest(self) -> Sequence[Instruction]:
        """The loop with most tensor-core instructions, then most others; without loops, everything."""
        return max(self.loops, key=lambda i: (_num_tensor(i), len(i)), default=self.instructions)


def parse(text: str) -> Program:
    """`nvdisasm -c` of one kernel."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.search(line):
            instructions.append(Instruction(int(found[1], 16), found[3], found[4].strip(), bool(found[2])))
    bodies = (
        [instructions[i] for i in sorted(body)] for body in loop_bodies(_successors(instructions, labels))
    )
    working = [
        set(body) for body in bodies if any(i.is_tensor or i.lane_flops or i.reads_global for i in body)
    ]
    innermost = (body for body in working if not any(other < body for other in working))
    return Program(instructions, [sorted(body, key=lambda i: i.address) for body in innermost])


def _successors(instructions: Sequence[Instruction], labels: Mapping[str, int]) -> list[list[int]]:
    """Which instructions may come after each one, by their numbers."""
    found = []
    for number, instruction in enumerate(instructions):
        target = _TARGET.search(instruction.operands) if instruction.name == "BRA" else None
        is_certain = not instruction.is_predicated and not re.match(r"!?U?P", instruction.operands)
        after = [] if is_certain and instruction.name in ("BRA", "EXIT", "RET") else [number + 1]
        if target and target[1] in labels:
            after.append(labels[target[1]])
        found.append([n for n in after if n < len(instructions)])
    return found


def _num_tensor(instructions: Iterable[Instruction]) -> int:
    return sum(i.is_tensor for i in instructions)


def tensor_instructions(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many of each: HMMA.16816.F32, HGMMA.64x128x16.F32, UTCHMMA, …"""
    return dict(sorted(Counter(i.opcode for i in instructions if i.is_tensor).items()))


def tensor_flops(instruction: Instruction, num_warps: int, unit_flops: float) -> float:
    """Of one warp. `unit_flops`: what one instruction of sm_100's unit does for the whole program, which
    its opcode does not say."""
    if group := _GROUP_PRODUCT.match(instruction.opcode):
        rows, columns, summed = map(int, group.groups())
        return 2 * rows * columns * summed / WARPS_A_GROUP
    if warp := _WARP_PRODUCT.match(instruction.opcode):
        return 2 * (16 * 8 * int(warp[1]) if warp[1] else 8 * 8 * 4)
    return unit_flops / num_warps


def flops_by_place(loop: Iterable[Instruction], num_warps: int, unit_flops: float) -> tuple[float, float]:
    """Of one warp: by tensor cores, and outside."""
    inside = outside = 0.0
    for instruction in loop:
        if instruction.is_tensor:
            inside += tensor_flops(instruction, num_warps, unit_flops)
        outside += instruction.lane_flops * WARP_LANES
    return inside, outside


def share_outside(loop: Iterable[Instruction], num_warps: int, unit_flops: float) -> float | None:
    """Of the loop's floating-point work, what is not done by tensor cores; None where there is none."""
    inside, outside = flops_by_place(loop, num_warps, unit_flops)
    return outside / (inside + outside) if inside + outside else None


def global_accesses(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many of each width in bits: LDG.128, LDGSTS.128, STG.16; UBLKCP and UTMALDG are bulk copies."""
    names = (*_GLOBAL_READS, "STG", "RED", "REDG", "ATOMG")
    counted = Counter(_with_width(i) for i in instructions if i.name in names)
    return dict(sorted(counted.items()))


def _with_width(instruction: Instruction) -> str:
    if instruction.name.startswith("U"):
        return instruction.name
    parts = instruction.opcode.split(".")[1:]
    width = next((part for part in parts if part in ("64", "128", "256")), None)
    if width is None:
        narrow = next((part[1:] for part in parts if part in ("U8", "S8", "U16", "S16")), "32")
        width = "256" if "ENL2" in parts else narrow
    return f"{instruction.name}.{width}"


def num_spills(instructions: Iterable[Instruction]) -> int:
    """Loads and stores of local memory, which is where registers go that have no place."""
    return sum(i.name in ("LDL", "STL") for i in instructions)
