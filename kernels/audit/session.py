"""One run of the audit: the chosen configurations for one architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kernels.audit.configuration import Configuration
from kernels.audit.configurations import KERNELS
from kernels.audit.job import Answer, Job
from kernels.audit.verdict import Row, not_for, rows_of
from kernels.gpus import arch_number


def audited(
    configurations: Sequence[Configuration], arch: str, ask: Callable[[Iterable[Job]], Iterable[Answer]]
) -> list[Row]:
    """Every configuration's rows, in order; `ask` compiles."""
    possible = [c for c in configurations if arch_number(c.least_arch) <= arch_number(arch)]
    answers = iter(ask(Job(c.op, c.arguments, arch) for c in possible))
    rows: list[Row] = []
    for configuration in configurations:
        if configuration in possible:
            rows += rows_of(configuration, arch, next(answers), KERNELS)
        else:
            rows.append(not_for(configuration, arch))
    return rows
