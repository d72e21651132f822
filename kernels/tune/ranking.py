"""Costs without a GPU: candidates are compiled, and what the audit reads of them is made a prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from kernels.audit.job import Answer, Job
from kernels.gpus import Gpu
from kernels.roofline import WORK
from kernels.tune.prediction import seconds
from kernels.tune.problem import Problem
from kernels.tune.search import Costs
from kernels.tune.space import Candidate


def ranking(problem: Problem, gpu: Gpu, ask: Callable[[Iterable[Job]], Iterable[Answer]]) -> Costs:
    def costs(candidates: Sequence[Candidate]) -> list[float]:
        jobs = [Job(problem.op, problem.arguments_with(candidate), gpu.arch) for candidate in candidates]
        return [_cost(problem, gpu, *pair) for pair in zip(candidates, ask(jobs), strict=True)]

    return costs


def _cost(problem: Problem, gpu: Gpu, candidate: Candidate, answer: Answer) -> float:
    if answer.error is not None:
        return math.inf
    chosen = problem.space.named(candidate)
    work = WORK[problem.op](**problem.arguments_with(candidate))
    return seconds(answer.kernels, problem.turns(chosen), gpu, num_bytes=work.num_bytes, dtype=work.dtype)
