"""The engine's main loop: schedule, execute, update."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.counters import EngineCounters
from engine.executor import Executor
from engine.request import Request, RequestOutput
from engine.scheduler import Scheduler
from engine.step import StepPlan, StepResult

log = logging.getLogger("headrace.engine")

MAX_FAILED_STEPS = 3
"""After so many in a row the executor is taken for broken."""


class EngineCore:
    """One scheduler and one executor, stepped by one thread. `clock` gives seconds, monotonic."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._num_failed_in_row = 0
        self.executor_s = 0.0
        """Seconds that steps spent in the executor; the rest of a step is overhead."""

    @property
    def is_broken(self) -> bool:
        """Whether the last `MAX_FAILED_STEPS` steps failed: nothing more is to be expected of it."""
        return self._num_failed_in_row >= MAX_FAILED_STEPS

    def check_fits(self, request: Request) -> None:
        """Raises RequestRefused for what can never be served. Any thread may ask."""
        self._scheduler.check_fits(request)

    def add(self, request: Request, arrival_s: float | None = None) -> None:
        """Queues `request`. Raises RequestRefused if it can never be served or its id is live.

        `arrival_s`: when it came, on this clock, if not just now.
        """
        self._scheduler.add(request, self._clock(), arrival_s)

    def abort(self, request_id: str, sibling: int | None = None) -> list[RequestOutput]:
        """Ends a request in any state, or one sibling of it. Their last outputs; none if not live."""
        return self._scheduler.abort(request_id, self._clock(), sibling)

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def step(self) -> list[RequestOutput]:
        """One step; one output for each request that got a token or ended in it."""
        plan = self._scheduler.schedule(self._clock())
        result = self._execute(plan)
        if result is None:
            return self._recover(plan)
        return self._scheduler.update(plan, result, self._clock())

    def _execute(self, plan: StepPlan) -> StepResult | None:
        """What the executor computed, or None if it failed."""
        begun = self._clock()
        try:
            result = self._executor.submit(plan).result()
            _check(result, plan)
        except Exception:
            log.exception("step %d failed with its %d requests", plan.step, len(plan.scheduled))
            self._num_failed_in_row += 1
            return None
        finally:
            self.executor_s += self._clock() - begun
        self._num_failed_in_row = 0
        return result

    def _recover(self, plan: StepPlan) -> list[RequestOutput]:
        """Ends the failed step's requests only; what was computed before counts as lost."""
        outputs = self._scheduler.fail(plan, self._clock())
        try:
            self._executor.reset()
        except Exception:
            log.exception("the executor could not be reset")
            self._num_failed_in_row = MAX_FAILED_STEPS
        return outputs

    def counters(self) -> EngineCounters:
        return self._scheduler.counters()

    def check_integrity(self) -> None:
        """Raises IntegrityError if the engine's bookkeeping contradicts itself."""
        self._scheduler.check_integrity()


def _check(result: StepResult, plan: StepPlan) -> None:
    """Raises ValueError unless there are tokens, or an error, exactly where they were to be sampled."""
    if result.step != plan.step or len(result.token_ids) != len(plan.scheduled):
        raise ValueError(f"result of step {result.step} does not answer step {plan.step}")
    for row, (scheduled, token_id) in enumerate(zip(plan.scheduled, result.token_ids, strict=True)):
        is_token_due = scheduled.output_index is not None and row not in result.errors
        num_tokens = (token_id is not None) + len(result.siblings.get(row, ()))
        if num_tokens != (scheduled.n if is_token_due else 0):
            raise ValueError(f"row {row} of step {plan.step} was not answered as asked")
