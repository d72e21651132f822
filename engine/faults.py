"""Faults made on purpose, for tests of what becomes of them: an executor that fails in chosen steps.

A spec is a comma-separated list of `KIND@STEP`, or `KIND@STEP+` for that step and all after it:
`raise@3` an exception, `memory@3` a MemoryError, `nan@3:0` row 0 of the step is not finite,
`hang@3:10` the step takes 10 seconds longer. `poison:7` ends the process in a step that computes token 7.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.executor import Done, Executor
from engine.step import StepPlan, StepResult

_POISON = re.compile(r"poison:(\d{1,9})", re.ASCII)
_FAULT = re.compile(r"(raise|memory|nan|hang)@(\d{1,9})(\+?)(?::(\d{1,9}(?:\.\d{1,9})?))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    step: int
    is_lasting: bool
    argument: float | None
    """Row of `nan`, seconds of `hang`, token id of `poison`."""

    def strikes(self, step: int) -> bool:
        return step >= self.step if self.is_lasting else step == self.step


def parse_faults(spec: str) -> tuple[Fault, ...]:
    """Raises ValueError naming the part that is wrong."""
    return tuple(_parse_fault(part) for part in spec.split(","))


def _parse_fault(text: str) -> Fault:
    if poison := _POISON.fullmatch(text):
        return Fault("poison", step=0, is_lasting=True, argument=int(poison[1]))
    match = _FAULT.fullmatch(text)
    if match is None:
        raise ValueError(f"a fault is like raise@3, memory@3+, nan@3:0, hang@3:10 or poison:7, not {text!r}")
    kind, step, lasting, argument = match.groups()
    if (kind in ("nan", "hang")) != (argument is not None):
        raise ValueError(f"nan takes a row and hang seconds, raise and memory nothing, not {text!r}")
    if kind == "nan" and "." in argument:
        raise ValueError(f"the row of nan is a whole number, not {text!r}")
    return Fault(kind, int(step), bool(lasting), None if argument is None else float(argument))


class FaultyExecutor:
    """Wraps an executor; `sleep(seconds)` waits, `end(status)` ends the process."""

    def __init__(
        self,
        executor: Executor,
        faults: tuple[Fault, ...],
        sleep: Callable[[float], object] = time.sleep,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._executor = executor
        self._faults = faults
        self._sleep = sleep
        self._end = end

    def submit(self, plan: StepPlan) -> Done:
        faults = [fault for fault in self._faults if fault.strikes(plan.step)]
        for fault in faults:
            if fault.kind == "hang":
                self._sleep(fault.argument or 0.0)
            if fault.kind == "poison" and any(fault.argument in row.token_ids for row in plan.scheduled):
                self._end(1)
        result = self._executor.submit(plan).result()
        for fault in faults:
            if fault.kind == "raise":
                raise RuntimeError(f"asked to fail in step {plan.step}")
            if fault.kind == "memory":
                raise MemoryError
            if fault.kind == "nan":
                result = _without_row(result, int(fault.argument or 0))
        return Done(result)

    def reset(self) -> None:
        self._executor.reset()


def _without_row(result: StepResult, bad: int) -> StepResult:
    """Row `bad` as one whose hidden state was not finite; the same result if there is no such row."""
    if bad >= len(result.token_ids):
        return result
    return StepResult(
        result.step,
        tuple(None if row == bad else token_id for row, token_id in enumerate(result.token_ids)),
        {row: logprobs for row, logprobs in result.logprobs.items() if row != bad},
        result.errors | {bad: "non_finite_logits"},
        {row: siblings for row, siblings in result.siblings.items() if row != bad},
    )
