"""What the compiled form of one kernel says, read from its texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernels.audit import ptx, sass
from kernels.audit.occupancy import LIMITS, Footprint, Occupancy, occupancy
from kernels.audit.shared_access import SharedAccess, shared_accesses
from kernels.audit.ttgir import Dot, dots, parameter_names


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel for one architecture, as Triton and NVIDIA's tools print it."""

    kernel: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int
    shared_bytes: int
    tensor_memory_columns: int
    ttir: str
    ttgir: str
    ptx: str
    sass: str
    """`nvdisasm -c`."""
    usage: str
    """`cuobjdump -res-usage`."""


@dataclass(frozen=True, slots=True)
class Facts:
    kernel: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int
    registers: int
    """A thread."""
    spill_bytes: int
    """Of the stack and of local memory, a thread."""
    num_spills: int
    """Instructions that load or store them."""
    shared_bytes: int
    occupancy: Occupancy
    dots: Sequence[Dot]
    tensor: Mapping[str, int]
    """Tensor-core instructions in the whole kernel."""
    share_outside: float | None
    """Of floating-point work, in the loop that has most: a static share."""
    loop_instructions: int
    """Of that loop."""
    loop_flops: float
    """Of a warp that goes through it once, tensor cores' included."""
    loop_accesses: Mapping[str, int]
    """Of global memory in loops, by width in bits."""
    accesses: Mapping[str, int]
    """Of global memory in the whole kernel."""
    loop_reads: Mapping[str, int]
    """Parameter → the narrowest load through it in a loop, in bits a thread."""
    shared_accesses: Sequence[SharedAccess]

    @property
    def conflict_degree(self) -> int:
        """The worst one in a loop, or, without loops, anywhere."""
        in_loops = [access for access in self.shared_accesses if access.is_in_loop]
        return max((access.degree or 1 for access in in_loops or self.shared_accesses), default=1)

    @property
    def num_unknown_accesses(self) -> int:
        """To shared memory, with layouts that are not understood."""
        return sum(access.degree is None for access in self.shared_accesses)


def facts_of(compiled: Compiled, arch: str) -> Facts:
    program = sass.parse(compiled.sass)
    registers, spill_bytes = _usage(compiled.usage)
    hottest, unit_flops = program.hottest(), ptx.unit_flops(compiled.ptx)
    footprint = Footprint(
        compiled.num_warps, registers, compiled.shared_bytes, compiled.tensor_memory_columns
    )
    return Facts(
        kernel=compiled.kernel,
        grid=compiled.grid,
        num_warps=compiled.num_warps,
        num_stages=compiled.num_stages,
        registers=registers,
        spill_bytes=spill_bytes,
        num_spills=sass.num_spills(program.instructions),
        shared_bytes=compiled.shared_bytes,
        occupancy=occupancy(footprint, LIMITS[arch]),
        dots=dots(compiled.ttgir, compiled.ttir),
        tensor=sass.tensor_instructions(program.instructions),
        share_outside=sass.share_outside(hottest, compiled.num_warps, unit_flops),
        loop_instructions=len(hottest),
        loop_flops=sum(sass.flops_by_place(hottest, compiled.num_warps, unit_flops)),
        loop_accesses=_summed(map(sass.global_accesses, program.loops)),
        accesses=sass.global_accesses(program.instructions),
        loop_reads=_narrowest(compiled),
        shared_accesses=shared_accesses(compiled.ttgir),
    )


def _usage(text: str) -> tuple[int, int]:
    """Registers and bytes that have none."""
    numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"]


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _narrowest(compiled: Compiled) -> dict[str, int]:
    names = parameter_names(compiled.ttgir)
    narrowest: dict[str, int] = {}
    for read in ptx.reads_in_loops(compiled.ptx):
        for pointer in read.pointers:
            name = names[pointer]
            narrowest[name] = min(read.bits, narrowest.get(name, read.bits))
    return narrowest
