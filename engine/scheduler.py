"""The life of requests between arrival and end, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable

from engine.block_allocator import BlockAllocator
from engine.block_pool import IntegrityError
from engine.config import EngineConfig
from engine.counters import EngineCounters
from engine.policy import SchedulingPolicy
from engine.refusal import RequestRefused, check_fits
from engine.request import FinishReason, Request, RequestOutput
from engine.request_state import RequestState
from engine.request_table import RequestTable
from engine.step import StepPlan, StepResult
from engine.step_builder import StepBuilder

__all__ = ["RequestRefused", "Scheduler"]


class Scheduler:
    """Owns all live requests, and which of them were launched with the step in flight.

    A step is launched by `schedule` and ended by `update` or `fail`; one at a time.
    """

    def __init__(
        self, config: EngineConfig, policy: SchedulingPolicy, *, eos_token_ids: Iterable[int]
    ) -> None:
        self._config = config
        self._policy = policy
        self._eos_token_ids = frozenset(eos_token_ids)
        self._blocks = BlockAllocator(config)
        self._requests = RequestTable()
        self._launched: tuple[RequestState, ...] = ()
        self._num_arrived = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._sum_empty_slots = 0
        self._sum_owned_slots = 0

    def check_fits(self, request: Request) -> None:
        """Raises RequestRefused for what can never be served. Touches no state: any thread may ask."""
        check_fits(request, self._config)

    def add(self, request: Request, now: float) -> None:
        """Queues `request`. Raises RequestRefused if it can never be served or its id is live."""
        self.check_fits(request)
        if self._requests.find(request.request_id) is not None:
            raise RequestRefused("duplicate_request", f"request {request.request_id} is already here")
        self._requests.add(RequestState(request, self._config, arrival_order=self._num_arrived, now=now))
        self._num_arrived += 1

    def abort(self, request_id: str, now: float) -> RequestOutput | None:
        """Ends a request in any state. Its last output, or None if it is not live.

        Blocks of a launched request go back when the step ends: until then it may write them.
        """
        state = self._requests.find(request_id)
        if state is None:
            return None
        output = state.final_output("abort", now)
        self._requests.finish(state)
        if state not in self._launched:
            self._blocks.release(state)
        return output

    def has_work(self) -> bool:
        return len(self._requests) > 0

    def schedule(self, now: float) -> StepPlan:
        """Launches a step: the tokens to compute and the blocks to compute them into.

        Never empty while there is work. Raises RuntimeError while a step is in flight.
        """
        if self._launched:
            raise RuntimeError(f"step {self._num_steps} is in flight")
        step = StepBuilder(self._config, self._policy, self._blocks, self._requests, now)
        step.build()
        self._num_steps += 1
        self._num_preemptions += len(step.preempted)
        self._launched = tuple(step.num_tokens)
        for state in self._launched:
            state.timeline.scheduled(now)
        return StepPlan(
            step=self._num_steps,
            scheduled=tuple(state.scheduled(count) for state, count in step.num_tokens.items()),
            preempted=tuple(step.preempted),
        )

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Takes in what the launched `plan` computed; one output for each request that got a token."""
        outputs: list[RequestOutput] = []
        landed = self._land(plan)
        for state, scheduled, token_id in zip(landed, plan.scheduled, result.token_ids, strict=True):
            if state.status == "finished":  # aborted while the step could still write its blocks
                self._blocks.release(state)
                continue
            state.num_computed_tokens += scheduled.num_scheduled_tokens
            self._blocks.register(state)
            if token_id is not None:
                outputs.append(self._take_token(state, token_id, now))
        self._sum_waste()
        return outputs

    def fail(self, plan: StepPlan, now: float) -> list[RequestOutput]:
        """Ends the launched `plan` without a result: its requests end with an error, no one else's."""
        outputs: list[RequestOutput] = []
        for state in self._land(plan):
            if state.status != "finished":
                outputs.append(state.final_output("error", now, "engine_error"))
                self._requests.finish(state)
            self._blocks.release(state)
        return outputs

    def _land(self, plan: StepPlan) -> tuple[RequestState, ...]:
        if plan.step != self._num_steps or len(plan.scheduled) != len(self._launched):
            raise RuntimeError(f"step {plan.step} is not the one in flight")
        landed, self._launched = self._launched, ()
        return landed

    def _take_token(self, state: RequestState, token_id: int, now: float) -> RequestOutput:
        state.append(token_id, now)
        finish_reason = self._finish_reason(state)
        output = state.token_output(finish_reason, now)
        if finish_reason is not None:
            self._requests.finish(state)
            self._blocks.release(state)
        return output

    def _finish_reason(self, state: RequestState) -> FinishReason | None:
        if state.last_token_id in self._eos_token_ids and not state.request.sampling.ignore_eos:
            return "stop"
        return "length" if state.num_tokens >= state.max_num_tokens else None

    def _holders(self) -> list[RequestState]:
        aborted = (state for state in self._launched if state.status == "finished")
        return [*self._requests.running.values(), *aborted]

    def _sum_waste(self) -> None:
        self._sum_empty_slots += self._blocks.num_empty_slots(self._holders())
        self._sum_owned_slots += self._blocks.num_owned_slots

    def counters(self) -> EngineCounters:
        pool, cache = self._blocks.pool, self._blocks.cache
        waiting, running = self._requests.waiting, self._requests.running
        empty_slots = self._blocks.num_empty_slots(self._holders())
        return EngineCounters(
            requests_running=len(running),
            requests_waiting=len(waiting),
            queued_tokens=sum(
                max(0, state.num_prompt_tokens - state.num_computed_tokens)
                for state in (*waiting.values(), *running.values())
            ),
            blocks_total=pool.num_blocks,
            blocks_in_use=pool.num_owned,
            blocks_evictable=pool.num_evictable,
            kv_waste_ratio=empty_slots / max(1, self._blocks.num_owned_slots),
            preemptions_total=self._num_preemptions,
            prefix_queries_tokens_total=cache.queries_tokens_total,
            prefix_hits_tokens_total=cache.hits_tokens_total,
            kv_empty_slots_total=self._sum_empty_slots,
            kv_owned_slots_total=self._sum_owned_slots,
        )

    def check_integrity(self) -> None:
        """Raises IntegrityError unless blocks, tables and promises agree. O(num_blocks)."""
        self._blocks.check_integrity(self._holders())
        if any(state.block_table or state.num_computed_tokens for state in self._requests.waiting.values()):
            raise IntegrityError("a waiting request holds blocks")
        running = self._requests.running.values()
        kept = sum(
            self._blocks.num_missing(state, state.num_promised_tokens)
            for state in running
            if state.is_reserved
        )
        if kept > self._blocks.pool.num_available:
            raise IntegrityError(f"{kept} blocks are kept for reserved requests, but fewer are available")
