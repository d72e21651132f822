"""The production scheduler in virtual time: what the studies compare is decided by the real code.

The model is replaced by a clock. Every request runs to its `max_tokens`, a step takes what `StepTime`
says, and nothing is cached, so that two runs differ only in what a study changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from engine.config import EngineConfig
from engine.counters import EngineCounters
from engine.policy import FirstComeFirstServed
from engine.request import Request, RequestOutput, SamplingParams
from engine.scheduler import Scheduler
from engine.step import SampledToken, StepPlan, StepResult
from loadtest.studies.lengths import Lengths

Admission = Callable[[int], int]
"""Live requests → how many more the scheduler may be given before the next step."""


def everyone(num_live: int) -> int:
    """All at once: who runs is the scheduler's own decision."""
    return 2**31


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: `base_s` to read the weights, `token_s` for each scheduled token."""

    base_s: float
    token_s: float

    def of(self, plan: StepPlan) -> float:
        return self.base_s + self.token_s * plan.num_scheduled_tokens


EIGHT_BILLION = StepTime(base_s=0.008, token_s=0.000_064)
"""8 × 10^9 parameters in bfloat16: 16 GB at 2 TB/s, and 16 GFLOP a token at 250 TFLOP/s."""


class StepSeen(NamedTuple):
    """One step and what was there after it."""

    plan: StepPlan
    outputs: list[RequestOutput]
    counters: EngineCounters
    num_queued: int
    """Requests that the admission kept back from the scheduler."""

    @property
    def is_saturated(self) -> bool:
        """Whether somebody waited."""
        return self.num_queued + self.counters.requests_waiting > 0


class VirtualEngine:
    """Owns one scheduler and the virtual clock `now`, in seconds."""

    def __init__(self, config: EngineConfig, step_time: StepTime = EIGHT_BILLION) -> None:
        self._scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=())
        self._step_time = step_time
        self.now = 0.0

    def add(self, request_id: str, lengths: Lengths) -> None:
        self._scheduler.add(_request(request_id, lengths), self.now)

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def step(self) -> tuple[StepPlan, list[RequestOutput]]:
        plan = self._scheduler.schedule(self.now)
        self.now += self._step_time.of(plan)
        return plan, self._scheduler.update(plan, sampled(plan), self.now)

    def run(self, load: Iterable[Lengths], admission: Admission = everyone) -> Iterator[StepSeen]:
        """Runs `load` to its end; each step as it was. Requests bear their number as id."""
        queue = deque(enumerate(load))
        num_live = 0
        while queue or self.has_work():
            for _ in range(min(len(queue), admission(num_live))):
                number, lengths = queue.popleft()
                self.add(str(number), lengths)
                num_live += 1
            plan, outputs = self.step()
            num_live -= sum(output.finish_reason is not None for output in outputs)
            yield StepSeen(plan, outputs, self._scheduler.counters(), len(queue))


def _request(request_id: str, lengths: Lengths) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(0,) * lengths.prompt_tokens,
        sampling=SamplingParams(max_tokens=lengths.output_tokens, ignore_eos=True),
        hash_root=b"",
    )


def sampled(plan: StepPlan) -> StepResult:
    """A token wherever one is due; which one makes no difference."""
    siblings = {row: (SampledToken(0),) * (r.n - 1) for row, r in enumerate(plan.scheduled) if r.n > 1}
    token_ids = tuple(None if r.output_index is None else 0 for r in plan.scheduled)
    return StepResult(plan.step, token_ids, siblings=siblings)
