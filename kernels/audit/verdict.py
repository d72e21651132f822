"""Holds what a kernel compiled to against what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kernels.audit.configuration import Configuration, Expected
from kernels.audit.facts import Facts
from kernels.audit.job import Answer


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel of one configuration."""

    op: str
    configuration: str
    arch: str
    facts: Facts | None
    """None: it was not compiled, and `note` or a failure says why."""
    failures: tuple[str, ...] = ()
    note: str = ""

    @property
    def place(self) -> str:
        kernel = "" if self.facts is None else f" {self.facts.kernel}"
        return f"{self.op} {self.configuration} on {self.arch}{kernel}"


def rows_of(
    configuration: Configuration, arch: str, answer: Answer, expected: Mapping[str, Expected]
) -> list[Row]:
    """A row for each kernel; `expected` by the names of kernels."""
    if answer.error is not None:
        return [_row(configuration, arch, None, f"does not compile: {answer.error}")]
    if not answer.kernels:
        return [_row(configuration, arch, None, "launches nothing")]
    rows = []
    for facts in answer.kernels:
        wanted = expected.get(facts.kernel, Expected())
        degree = max(configuration.max_conflict_degree, wanted.max_conflict_degree)
        bits = min(configuration.least_load_bits, wanted.least_load_bits)
        found = failures(facts, replace(wanted, max_conflict_degree=degree, least_load_bits=bits))
        rows.append(_row(configuration, arch, facts, *found))
    return rows


def not_for(configuration: Configuration, arch: str) -> Row:
    """Of a configuration that an architecture cannot have."""
    note = f"n/a: needs {configuration.least_arch} or later"
    return Row(configuration.op, configuration.name, arch, None, note=note)


def failures(facts: Facts, expected: Expected) -> Iterator[str]:
    if facts.spill_bytes or facts.num_spills:
        yield f"spills {facts.spill_bytes} bytes a thread, {facts.num_spills} loads and stores of them"
    if facts.occupancy.programs == 0:
        yield f"does not fit a processor: too much {facts.occupancy.limited_by}"
    yield from _products(facts, expected)
    yield from _streams(facts, expected)
    if facts.conflict_degree > expected.max_conflict_degree:
        worst = next(a for a in facts.shared_accesses if a.degree == facts.conflict_degree)
        yield (
            f"bank conflicts: {worst.what} is served in {worst.degree} turns,"
            f" at most {expected.max_conflict_degree} stated"
        )
    if facts.num_unknown_accesses:
        yield f"{facts.num_unknown_accesses} accesses to shared memory with an unknown layout"


def _products(facts: Facts, expected: Expected) -> Iterator[str]:
    for precision in sorted({dot.precision for dot in facts.dots if dot.precision is not None}):
        if precision != expected.precision:
            yield f"float32 is multiplied as {precision}, {expected.precision} stated"
    if expected.has_products and not facts.dots:
        yield "a product without tensor cores: none of tiles at all"
    # float32 as such has no tensor cores.
    narrow = [dot for dot in facts.dots if dot.precision != "ieee"]
    if any(dot.is_by_threads for dot in narrow) or (narrow and not facts.tensor):
        yield f"a product of {narrow[0].element} without tensor cores"


def _streams(facts: Facts, expected: Expected) -> Iterator[str]:
    for name in expected.streams:
        bits = facts.loop_reads.get(name)
        if bits is None:
            yield f"no loop reads {name}"
        elif bits < expected.least_load_bits:
            yield f"a loop reads {name} by {bits} bits a thread, at least {expected.least_load_bits} stated"


def _row(configuration: Configuration, arch: str, facts: Facts | None, *found: str) -> Row:
    return Row(configuration.op, configuration.name, arch, facts, found)
