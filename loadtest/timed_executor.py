"""An executor that is timed: what the model took, beside the least that it could have taken."""

from __future__ import annotations

from collections.abc import Callable

from engine.executor import Done, Executor
from engine.step import StepPlan


class TimedExecutor:
    """Sums, in seconds: `model_s`, spent inside; `least_s`, what `least_s_of` says of each step."""

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], float],
        least_s_of: Callable[[StepPlan], float] | None = None,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._least_s_of = least_s_of
        self.model_s = 0.0
        self.least_s: float | None = None if least_s_of is None else 0.0

    def submit(self, plan: StepPlan) -> Done:
        begun = self._clock()
        pending = self._executor.submit(plan)
        result = pending.result()
        self.model_s += self._clock() - begun
        if self.least_s is not None and self._least_s_of is not None:
            self.least_s += self._least_s_of(plan)
        return Done(result)

    def reset(self) -> None:
        self._executor.reset()
