"""Triton's GPU IR as text: a kernel's operations, with the tiles that they take and give."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernels.audit.layout import Layout, parse, parse_aliases

ELEMENT_BYTES = {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
DOTS = ("tt.dot", "ttng.warp_group_dot", "ttng.tc_gen5_mma")
_OPERATION = re.compile(r"\s*(?:%\S+(?:, %\S+)* = )?((?:tt|ttg|ttng)\.\w+) ?(.*)$")
_LOCATION = re.compile(r" loc\((?:[^()]|\([^()]*\))*\)")
_SIZES = re.compile(r"^(?:\d+x)+")
_TILE = re.compile(r"(?:tensor|!ttg\.memdesc|->\s*)<")


@dataclass(frozen=True)
class Tile:
    """The type of a value that is a tile."""

    shape: tuple[int, ...]
    element: str
    """As the IR says it; of a tile of pointers, what they point to."""
    layout: Layout | None
    is_shared: bool
    """In shared memory, not in registers or tensor memory."""

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES.get(self.element, 1)  # the others are types of 8 bits

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.element])


@dataclass(frozen=True)
class Operation:
    name: str
    text: str
    tiles: tuple[Tile, ...]
    """Of operands and result, as they are printed."""
    is_in_loop: bool


@dataclass(frozen=True, slots=True)
class Dot:
    """A product of tiles."""

    element: str
    """Of its operands."""
    precision: str | None
    """How float32 operands are multiplied; None for others."""
    is_by_threads: bool
    """Without tensor cores."""


def operations(ttgir: str) -> Iterator[Operation]:
    """Those of Triton's own, in order."""
    aliases = parse_aliases(ttgir)
    is_loop: list[bool] = []  # of each region that is open
    for line in ttgir.splitlines():
        text = _LOCATION.sub("", line).strip()
        if found := _OPERATION.match(text):
            yield Operation(found[1], found[2], tuple(_tiles(found[2], aliases)), any(is_loop))
        if text.startswith("}"):
            is_loop.pop()
        if text.endswith("{"):
            is_loop.append("scf.for" in text or "scf.while" in text or text == "} do {")


def parameter_names(ttgir: str) -> list[str]:
    """Of the kernel as compiled (constants are gone), as its source calls them."""
    found = re.search(r"tt\.func public @\w+\((.*)", ttgir)
    return re.findall(r"%(\w+):", found[1]) if found else []


def dots(ttgir: str, ttir: str) -> list[Dot]:
    """The products of the compiled form, with the precision that the source asked for (`ttir`)."""
    asked = [text for text in re.findall(r"tt\.dot .*", ttir) if "xf32" in text.split("->")[0]]
    precision = "+".join(sorted({_precision(text) for text in asked}))
    return [_dot(operation, precision) for operation in operations(ttgir) if operation.name in DOTS]


def _dot(operation: Operation, precision: str) -> Dot:
    element, result = operation.tiles[0].element, operation.tiles[-1]
    is_by_threads = result.layout is not None and result.layout.kind == "blocked"
    return Dot(element, precision if element == "f32" else None, is_by_threads)


def _precision(dot: str) -> str:
    named = re.search(r"inputPrecision = (\w+)", dot)
    return named[1] if named else "ieee"


def _tiles(text: str, aliases: Mapping[str, Layout]) -> Iterator[Tile]:
    for found in _TILE.finditer(text):
        parts = _parts(text[found.end() :])
        sizes = _SIZES.match(parts[0])
        element = _SIZES.sub("", parts[0])
        pointee = re.fullmatch(r"!tt\.ptr<(\w+)>", element)
        yield Tile(
            tuple(map(int, re.findall(r"\d+", sizes[0] if sizes else ""))),
            pointee[1] if pointee else element,
            parse(parts[1], aliases) if len(parts) > 1 else None,
            "#smem" in parts,
        )


def _parts(text: str) -> list[str]:
    """What stands before the angle bracket that closes, cut at its own commas."""
    depth, parts, part = 1, [], ""
    for character in text:
        depth += (character in "<{[(") - (character in ">}])")
        if depth == 0:
            break
        if character == "," and depth == 1:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return [*parts, part.strip()]
