"""Layouts as Triton's GPU IR prints them, and which elements of a tile each lane of a warp holds.

A layout of registers is linear: number registers and lanes in binary, and an element's coordinates are the
exclusive or of one vector for each bit that is set. So a layout is two lists of vectors (`Bases`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Vector = tuple[int, ...]
_TOKEN = re.compile(r"#?[\w.]+|[<>{}\[\],=]")


@dataclass(frozen=True)
class Layout:
    kind: str
    """blocked, linear, nvidia_mma, dot_op, slice; swizzled_shared, nvmma_shared; others."""
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Bases:
    """Of the first warp: the others hold the same pattern elsewhere."""

    registers: tuple[Vector, ...]
    lanes: tuple[Vector, ...]


class UnknownLayout(Exception):
    """A layout that nothing here can lay out."""


def parse_aliases(ttgir: str) -> dict[str, Layout]:
    """The layouts that a module names at its top: `#blocked = #ttg.blocked<{…}>`."""
    aliases: dict[str, Layout] = {}
    for name, text in re.findall(r"^(#\w+) = (#ttn?g\.\w+<.*>)$", ttgir, re.MULTILINE):
        aliases[name] = parse(text, aliases)
    return aliases


def parse(text: str, aliases: Mapping[str, Layout]) -> Layout:
    """Raises UnknownLayout for an alias that is not there."""
    value = _value(deque(_TOKEN.findall(text)), aliases)
    if not isinstance(value, Layout):
        raise UnknownLayout(text)
    return value


def _value(tokens: deque[str], aliases: Mapping[str, Layout]) -> Any:
    token = tokens.popleft()
    if token == "[":
        return _list(tokens, aliases)
    if token.startswith("#"):
        if tokens and tokens[0] == "<":
            return Layout(token.rsplit(".", 1)[-1], _fields(tokens, aliases))
        return aliases.get(token) or Layout(token, {})
    if token.isdigit():
        return int(token)
    return {"true": True, "false": False}.get(token, token)


def _list(tokens: deque[str], aliases: Mapping[str, Layout]) -> list[Any]:
    values = []
    while tokens[0] != "]":
        values.append(_value(tokens, aliases))
        if tokens[0] == ",":
            tokens.popleft()
    tokens.popleft()
    return values


def _fields(tokens: deque[str], aliases: Mapping[str, Layout]) -> dict[str, Any]:
    """`<{a = 1, b = [2]}>`, or without the braces."""
    fields: dict[str, Any] = {}
    tokens.popleft()
    while tokens[0] != ">":
        token = tokens.popleft()
        if token not in "{},":
            tokens.popleft()  # the equals sign
            fields[token] = _value(tokens, aliases)
    tokens.popleft()
    return fields


def bases(layout: Layout, shape: Sequence[int]) -> Bases:
    """Who holds what of a tile of `shape`. Raises UnknownLayout."""
    known = {"blocked": _blocked, "linear": _linear, "nvidia_mma": _mma, "slice": _slice, "dot_op": _dot_op}
    if layout.kind not in known:
        raise UnknownLayout(layout.kind)
    return _within(known[layout.kind](layout.fields, shape), shape)


def _blocked(fields: Mapping[str, Any], shape: Sequence[int]) -> Bases:
    """Along the dimensions of `order`: a thread's own elements, then the warp's lanes, then the warps; a
    tile larger than that repeats it in further registers."""
    own, lanes, warps = fields["sizePerThread"], fields["threadsPerWarp"], fields["warpsPerCTA"]
    registers: list[Vector] = []
    across: list[Vector] = []
    again: list[Vector] = []
    for dim in fields["order"]:
        unit = own[dim] * lanes[dim]
        registers += _steps(dim, 1, own[dim], len(shape))
        across += _steps(dim, own[dim], unit, len(shape))
        again += _steps(dim, unit * warps[dim], shape[dim], len(shape))
    return Bases(tuple(registers + again), tuple(across))


def _linear(fields: Mapping[str, Any], shape: Sequence[int]) -> Bases:
    return Bases(tuple(map(tuple, fields["register"])), tuple(map(tuple, fields["lane"])))


def _mma(fields: Mapping[str, Any], shape: Sequence[int]) -> Bases:
    """The sums of tensor cores: a warp has 16 rows; a lane pairs of neighbours in rows r and r + 8."""
    columns, warps = fields["instrShape"][1], fields["warpsPerCTA"]
    registers = [(0, 1), (8, 0), *_steps(1, 8, columns, 2)]
    registers += _steps(1, columns * warps[1], shape[1], 2) + _steps(0, 16 * warps[0], shape[0], 2)
    return Bases(tuple(registers), ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)))


def _dot_op(fields: Mapping[str, Any], shape: Sequence[int]) -> Bases:
    """An operand, [M, K] or [K, N], of tensor cores or of a product by single threads."""
    parent: Layout = fields["parent"]
    summed = 1 if fields["opIdx"] == 0 else 0
    if parent.kind == "blocked":  # each thread reads the whole of K for its elements
        held = _blocked(parent.fields, [*shape[:summed], 1, *shape[summed + 1 :]])
        registers = [*_steps(summed, 1, shape[summed], 2), *(v for v in held.registers if v[summed] == 0)]
        return Bases(tuple(registers), tuple(_cleared(vector, summed) for vector in held.lanes))
    width, other = fields["kWidth"], 1 - summed
    rows = 16 if other == 0 else 8
    again = rows * parent.fields["warpsPerCTA"][other]
    registers = _steps(summed, 1, width, 2) + _steps(summed, 4 * width, shape[summed], 2)
    registers += _steps(other, 8, rows, 2) + _steps(other, again, shape[other], 2)
    lanes = _steps(summed, width, 4 * width, 2) + _steps(other, 1, 8, 2)
    return Bases(tuple(registers), tuple(lanes))


def _slice(fields: Mapping[str, Any], shape: Sequence[int]) -> Bases:
    """A layout without one of its dimensions: what differed only there is the same element now."""
    dim, parent = fields["dim"], fields["parent"]
    whole = bases(parent, [*shape[:dim], 1, *shape[dim:]])
    registers, lanes = (
        tuple(vector[:dim] + vector[dim + 1 :] for vector in vectors)
        for vectors in (whole.registers, whole.lanes)
    )
    return Bases(registers, lanes)


def _steps(dim: int, start: int, end: int, rank: int) -> list[Vector]:
    """Powers of two in [start, end) along one dimension."""
    steps = []
    while start < end:
        steps.append(tuple(start if i == dim else 0 for i in range(rank)))
        start *= 2
    return steps


def _cleared(vector: Vector, dim: int) -> Vector:
    return (*vector[:dim], 0, *vector[dim + 1 :])


def _within(found: Bases, shape: Sequence[int]) -> Bases:
    """What steps over a tile's edge holds the same element again."""
    registers, lanes = (
        [tuple(0 if x >= size else x for x, size in zip(vector, shape, strict=True)) for vector in vectors]
        for vectors in (found.registers, found.lanes)
    )
    return Bases(tuple(vector for vector in dict.fromkeys(registers) if any(vector)), tuple(lanes))
