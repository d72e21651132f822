"""An executor that is watched: what is scheduled is told before it is computed."""

from __future__ import annotations

from collections.abc import Callable

from engine.executor import Executor, Pending
from engine.step import StepPlan


class WatchedExecutor:
    """Tells `on_plan` of each plan while its step is in flight; who runs the engine sets it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.on_plan: Callable[[StepPlan], None] = lambda plan: None

    def submit(self, plan: StepPlan) -> Pending:
        self.on_plan(plan)
        return self._executor.submit(plan)

    def reset(self) -> None:
        self._executor.reset()
