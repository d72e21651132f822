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


class EngineCore:
    """One scheduler and one executor, stepped by one thread. `clock` gives seconds, monotonic."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock

    def check_fits(self, request: Request) -> None:
        """Raises RequestRefused for what can never be served. Any thread may ask."""
        self._scheduler.check_fits(request)

    def add(self, request: Request) -> None:
        """Queues `request`. Raises RequestRefused if it can never be served or its id is live."""
        self._scheduler.add(request, self._clock())

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request in any state. Its last output, or None if it is not live."""
        return self._scheduler.abort(request_id, self._clock())

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def step(self) -> list[RequestOutput]:
        """One step; one output for each request that got a token or ended in it."""
        plan = self._scheduler.schedule(self._clock())
        result = self._execute(plan)
        if result is None:
            return self._scheduler.fail(plan, self._clock())
        return self._scheduler.update(plan, result, self._clock())

    def _execute(self, plan: StepPlan) -> StepResult | None:
        """What the executor computed, or None if it failed: that ends the step's requests only."""
        try:
            result = self._executor.submit(plan).result()
            _check(result, plan)
        except Exception:
            log.exception("step %d failed with its %d requests", plan.step, len(plan.scheduled))
            return None
        return result

    def counters(self) -> EngineCounters:
        return self._scheduler.counters()

    def check_integrity(self) -> None:
        """Raises IntegrityError if the engine's bookkeeping contradicts itself."""
        self._scheduler.check_integrity()


def _check(result: StepResult, plan: StepPlan) -> None:
    """Raises ValueError unless there is a token exactly where one was to be sampled."""
    sampled = tuple(token_id is not None for token_id in result.token_ids)
    if result.step != plan.step or sampled != tuple(s.output_index is not None for s in plan.scheduled):
        raise ValueError(f"result of step {result.step} does not answer step {plan.step}")
