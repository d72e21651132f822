"""How many programs a processor of the GPU can hold at a time, from what one of them takes.

Arithmetic on published limits (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"), for a program of W warps with R registers a thread and S bytes of shared memory:

    registers       a warp gets 32 · R, rounded up to 256; each quarter of a processor has 16,384 of them
    warps           ⌊max_warps / W⌋
    shared memory   S + 1 KiB that the system keeps for each program, rounded up to 128 bytes
    tensor memory   512 columns a processor (sm_100)

The least of them rules. Measured occupancy is lower when programs are fewer or end unevenly.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS_A_QUARTER = 16_384
QUARTERS = 4
KIB = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one processor has."""

    max_warps: int
    max_programs: int
    shared_bytes: int
    max_shared_bytes: int
    """That a single program may ask for."""
    tensor_memory_columns: int = 0


LIMITS = {
    "sm_80": Limits(64, 32, 164 * KIB, 163 * KIB),
    "sm_89": Limits(48, 24, 100 * KIB, 99 * KIB),
    "sm_90": Limits(64, 32, 228 * KIB, 227 * KIB),
    "sm_100": Limits(64, 32, 228 * KIB, 227 * KIB, tensor_memory_columns=512),
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one program takes."""

    num_warps: int
    registers: int
    """A thread."""
    shared_bytes: int
    tensor_memory_columns: int = 0


@dataclass(frozen=True, slots=True)
class Occupancy:
    programs: int
    """On one processor at a time; 0: a program does not fit at all."""
    share: float
    """Warps of these programs ÷ warps that a processor can hold."""
    limited_by: str


def occupancy(footprint: Footprint, limits: Limits) -> Occupancy:
    room = {
        "warps": limits.max_warps // footprint.num_warps,
        "programs": limits.max_programs,
        "registers": _by_registers(footprint),
        "shared memory": _by_shared_memory(footprint, limits),
    }
    if footprint.tensor_memory_columns:
        room["tensor memory"] = limits.tensor_memory_columns // footprint.tensor_memory_columns
    limited_by = min(room, key=lambda name: room[name])
    programs = room[limited_by]
    return Occupancy(programs, programs * footprint.num_warps / limits.max_warps, limited_by)


def _by_registers(footprint: Footprint) -> int:
    a_warp = _rounded_up(32 * footprint.registers, 256)
    warps = QUARTERS * (REGISTERS_A_QUARTER // a_warp)
    return warps // footprint.num_warps


def _by_shared_memory(footprint: Footprint, limits: Limits) -> int:
    if footprint.shared_bytes > limits.max_shared_bytes:
        return 0
    return limits.shared_bytes // _rounded_up(footprint.shared_bytes + KIB, 128)


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
