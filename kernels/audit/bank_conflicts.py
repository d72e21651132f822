"""How often a warp's access to shared memory is served in turns, from the layouts alone.

Shared memory has 32 banks of 4 bytes: byte address a lies in bank (a / 4) mod 32. Lanes are served together
as long as no bank has to give two different words; the *degree* is the largest number of different words
that one bank has to give, 1 for none. A wide access goes in parts by itself: 16 bytes a lane are served
8 lanes at a time, 8 bytes 16 lanes, 4 bytes and less all 32, always 32 words at best.

Where an element lies, a swizzled layout says. Along the contiguous dimension a row is cut into vectors of
`vec` elements, and vector number c of row r is put at place c xor ((r / perPhase) mod maxPhase). Without it
rows of 128 bytes or a multiple lie in the same banks, so 8 rows read at one column meet 8-fold; with
maxPhase 8 and vectors of 16 bytes they lie in 8 different places. `nvmma_shared`, the layout that the
matrix units of sm_90 and sm_100 read, is the same with vectors of 16 bytes in panels of
swizzlingByteWidth = W bytes: perPhase 128 / W, maxPhase W / 16.

Two patterns of access:
    lanes      each lane its elements, by the layout of the registers, in the widest vectors that are
               contiguous for all of them (16 bytes at most)
    matrices   8 neighbouring rows of 16 bytes at a time, as ldmatrix and the matrix units fetch operands

Not covered: the scratch with which Triton changes a layout between registers, for it isn't in the text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import xor

from kernels.audit.layout import Bases, Layout, UnknownLayout, Vector

BANKS = 32
WORD_BYTES = 4
WIDEST_BYTES = 16
MATRIX_ROWS = 8
MATRIX_ROW_BYTES = 16

Place = Callable[[Vector], int]
"""Coordinates of an element → its byte in the tile."""


def degree_of_lanes(
    held: Bases, shared: Layout, shape: Sequence[int], element_bytes: int, most_elements: int | None = None
) -> int:
    """Of a warp that loads or stores what its registers hold, `most_elements` contiguous ones at a time.

    Raises UnknownLayout.
    """
    place = placed(shared, shape, element_bytes)
    inner = contiguous_dim(shared, len(shape))
    vector = _vector(held, place, inner, element_bytes, most_elements or WIDEST_BYTES // element_bytes)
    others = [base for base in held.registers if base not in vector]
    width = element_bytes << len(vector)
    at_a_time = min(32, BANKS * WORD_BYTES // max(width, WORD_BYTES))
    lanes = _combinations(held.lanes, len(shape))
    degrees = []
    for register in _combinations(others[:6], len(shape)):  # further ones repeat the pattern
        starts = [place(_added(register, lane)) for lane in lanes]
        parts = (starts[i : i + at_a_time] for i in range(0, len(starts), at_a_time))
        degrees += [_degree(part, width) for part in parts]
    return max(degrees)


def degree_of_matrices(shared: Layout, shape: Sequence[int], element_bytes: int) -> int:
    """Of operands that are fetched as matrices of 8 rows. Raises UnknownLayout."""
    place = placed(shared, shape, element_bytes)
    inner = contiguous_dim(shared, len(shape))
    a_row = MATRIX_ROW_BYTES // element_bytes
    degrees = []
    for row in range(0, shape[1 - inner], MATRIX_ROWS):
        for column in range(0, shape[inner], a_row):
            rows = range(row, min(row + MATRIX_ROWS, shape[1 - inner]))
            starts = [place((r, column) if inner == 1 else (column, r)) for r in rows]
            degrees.append(_degree(starts, MATRIX_ROW_BYTES))
    return max(degrees)


def placed(shared: Layout, shape: Sequence[int], element_bytes: int) -> Place:
    """Where a layout puts the elements of a tile. Raises UnknownLayout."""
    inner = contiguous_dim(shared, len(shape))
    row_bytes = shape[inner] * element_bytes
    if shared.kind == "swizzled_shared":
        vec, per_phase, max_phase = (shared.fields[name] for name in ("vec", "perPhase", "maxPhase"))
        return _swizzled(inner, element_bytes, row_bytes, 0, vec * element_bytes, per_phase, max_phase)
    width = shared.fields["swizzlingByteWidth"]
    if width == 0:
        return _swizzled(inner, element_bytes, row_bytes, 0, MATRIX_ROW_BYTES, 1, 1)
    panel = min(width, row_bytes)
    num_rows = shape[1 - inner] if len(shape) == 2 else 1
    return _swizzled(
        inner, element_bytes, panel, num_rows * panel, MATRIX_ROW_BYTES, 128 // width, width // 16
    )


def _swizzled(
    inner: int,
    element_bytes: int,
    row_bytes: int,
    panel_bytes: int,
    vec_bytes: int,
    per_phase: int,
    phases: int,
) -> Place:
    """Rows of `row_bytes`; what is longer goes on in the next panel, `panel_bytes` on."""

    def place(element: Vector) -> int:
        row = element[1 - inner] if len(element) == 2 else 0
        panel, byte = divmod(element[inner] * element_bytes, row_bytes)
        vector = byte // vec_bytes ^ row // per_phase % phases
        return panel * panel_bytes + row * row_bytes + vector * vec_bytes + byte % vec_bytes

    return place


def contiguous_dim(shared: Layout, rank: int) -> int:
    """Along which neighbours lie side by side. Raises UnknownLayout."""
    if rank > 2:
        raise UnknownLayout(f"{rank} dimensions")
    if shared.kind == "swizzled_shared":
        dim: int = shared.fields["order"][0]
        return dim
    if shared.kind == "nvmma_shared":
        return 0 if shared.fields["transposed"] else rank - 1
    raise UnknownLayout(shared.kind)


def _vector(held: Bases, place: Place, inner: int, element_bytes: int, most_elements: int) -> list[Vector]:
    """The registers of a lane that lie side by side in every lane and row: 1, 2, 4, … elements."""
    lanes = _combinations(held.lanes, len(held.lanes[0]))
    other_rows = [base for base in held.registers if any(base[:inner] + base[inner + 1 :])]
    corners = lanes + [_added(lane, base) for lane in lanes for base in other_rows]
    vector: list[Vector] = []
    while 1 << len(vector) < most_elements:
        step = element_bytes << len(vector)
        fitting = (
            base
            for base in held.registers
            if base not in other_rows and all(place(_added(c, base)) == place(c) + step for c in corners)
        )
        found = next(fitting, None)
        if found is None:
            break
        vector.append(found)
    return vector


def _degree(starts: Iterable[int], width: int) -> int:
    words: defaultdict[int, set[int]] = defaultdict(set)
    for start in starts:
        for word in range(start // WORD_BYTES, (start + width - 1) // WORD_BYTES + 1):
            words[word % BANKS].add(word)
    return max(map(len, words.values()))


def _combinations(bases: Sequence[Vector], rank: int) -> list[Vector]:
    """The exclusive or of every subset, in binary order."""
    found = [(0,) * rank]
    for base in bases:
        found += [_added(vector, base) for vector in found]
    return found


def _added(*vectors: Vector) -> Vector:
    return tuple(reduce(xor, numbers) for numbers in zip(*vectors, strict=True))
