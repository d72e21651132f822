"""The seam between deciding and computing: an executor turns a `StepPlan` into a `StepResult`."""

from __future__ import annotations

from typing import Protocol

from engine.step import StepPlan, StepResult


class Pending(Protocol):
    """A step that was launched. `result()` waits for it; at most one is pending at a time."""

    def result(self) -> StepResult: ...


class Executor(Protocol):
    """Owns the model and the KV tensors; knows no queue, no request's end and no tenant."""

    def submit(self, plan: StepPlan) -> Pending: ...

    def reset(self) -> None:
        """Forgets all KV. Called after a failed step: later plans read nothing written before."""


class Done:
    """A `Pending` whose result is already here: for executors that compute in `submit`."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result
