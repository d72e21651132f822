"""A kernel's accesses to shared memory, each with its degree of bank conflicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels.audit.bank_conflicts import contiguous_dim, degree_of_lanes, degree_of_matrices
from kernels.audit.layout import Layout, UnknownLayout, bases
from kernels.audit.ttgir import DOTS, Operation, Tile, operations

_COPIES = ("ttg.async_copy_global_to_local", "ttg.local_store", "ttg.local_alloc", "ttg.local_load")


@dataclass(frozen=True, slots=True)
class SharedAccess:
    what: str
    """The operation and the tile in shared memory."""
    pattern: str
    """lanes or matrices."""
    degree: int | None
    """None: a layout that is not understood."""
    is_in_loop: bool


def shared_accesses(ttgir: str) -> list[SharedAccess]:
    """Every kind of access once, those in loops first."""
    found = [access for operation in operations(ttgir) for access in _accesses(operation)]
    return sorted(dict.fromkeys(found), key=lambda access: not access.is_in_loop)


def _accesses(operation: Operation) -> Iterator[SharedAccess]:
    shared = [tile for tile in operation.tiles if tile.is_shared]
    if operation.name in DOTS:
        # The matrix units fetch what lies in shared memory themselves; a barrier is no operand.
        for tile in (tile for tile in shared if len(tile.shape) == 2):
            yield _matrices(operation, tile)
    elif operation.name in _COPIES and shared and len(operation.tiles) == 2:
        (held,) = (tile for tile in operation.tiles if not tile.is_shared)
        is_matrices = operation.name == "ttg.local_load" and _is_fetched_as_matrices(held, shared[0])
        yield _matrices(operation, shared[0]) if is_matrices else _lanes(operation, held, shared[0])


def _is_fetched_as_matrices(held: Tile, shared: Tile) -> bool:
    """By ldmatrix: operands of tensor cores. It can turn 16-bit elements over; others must lie right."""
    if held.layout is None or held.layout.kind != "dot_op" or shared.layout is None:
        return False
    if held.layout.fields["parent"].kind == "blocked":
        return False
    summed = 1 if held.layout.fields["opIdx"] == 0 else 0
    return held.element_bytes == 2 or contiguous_dim(shared.layout, 2) == summed


def _matrices(operation: Operation, tile: Tile) -> SharedAccess:
    def degree(layout: Layout) -> int:
        return degree_of_matrices(layout, tile.shape, tile.element_bytes)

    return _access(operation, tile, "matrices", degree)


def _lanes(operation: Operation, held: Tile, shared: Tile) -> SharedAccess:
    def degree(layout: Layout) -> int:
        if held.layout is None:
            raise UnknownLayout(str(held))
        most = re.search(r"contiguity = (\d+)", operation.text)
        held_bases = bases(held.layout, held.shape)
        return degree_of_lanes(
            held_bases, layout, shared.shape, shared.element_bytes, int(most[1]) if most else None
        )

    return _access(operation, shared, "lanes", degree)


def _access(operation: Operation, tile: Tile, pattern: str, degree: Callable[[Layout], int]) -> SharedAccess:
    try:
        found = None if tile.layout is None else degree(tile.layout)
    except UnknownLayout:
        found = None
    return SharedAccess(f"{operation.name} {tile}", pattern, found, operation.is_in_loop)
