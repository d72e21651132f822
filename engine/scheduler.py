"""The life of requests between arrival and end, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable

from engine.block_allocator import BlockAllocator
from engine.block_events import NOBODY, BlockListener
from engine.block_pool import IntegrityError
from engine.config import EngineConfig
from engine.counters import EngineCounters
from engine.policy import SchedulingPolicy, Service
from engine.refusal import RequestRefused, check_fits
from engine.request import FinishReason, Request, RequestOutput
from engine.request_state import RequestState
from engine.request_table import RequestTable
from engine.step import SampledToken, StepPlan, StepResult
from engine.step_builder import StepBuilder

__all__ = ["RequestRefused", "Scheduler"]

_ONE_TOKEN = Service(num_output_tokens=1)


class Scheduler:
    """Owns all live requests, and which of them were launched with the step in flight.

    A step is launched by `schedule` and ended by `update` or `fail`; one at a time.
    """

    def __init__(
        self,
        config: EngineConfig,
        policy: SchedulingPolicy,
        *,
        eos_token_ids: Iterable[int],
        listener: BlockListener = NOBODY,
    ) -> None:
        self._config = config
        self._policy = policy
        self._eos_token_ids = tuple(eos_token_ids)
        self._blocks = BlockAllocator(config, listener)
        self._requests = RequestTable(policy)
        self._launched: tuple[RequestState, ...] = ()
        self._num_arrived = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_computed_tokens = 0
        self._num_recomputed_tokens = 0
        self._num_failed_requests = 0
        self._num_failed_steps = 0
        self._sum_empty_slots = 0
        self._sum_owned_slots = 0

    def check_fits(self, request: Request) -> None:
        """Raises RequestRefused for what can never be served. Touches no state: any thread may ask."""
        check_fits(request, self._config)

    def add(self, request: Request, now: float, arrival_s: float | None = None) -> None:
        """Queues `request`, which came at `arrival_s`, or just `now`.

        Raises RequestRefused if it can never be served or its id is live.
        """
        self.check_fits(request)
        if self._requests.find(request.request_id):
            raise RequestRefused("duplicate_request", f"request {request.request_id} is already here")
        state = RequestState(
            request,
            self._config,
            arrival_order=self._num_arrived,
            now=now,
            arrival_s=arrival_s,
            eos_token_ids=self._eos_token_ids,
        )
        self._requests.add(state)
        self._num_arrived += request.n

    def abort(self, request_id: str, now: float, sibling: int | None = None) -> list[RequestOutput]:
        """Ends a request in any state, or one sibling of it. Their last outputs; none if not live.

        A sibling can be ended alone once its first token was told: before, it is not there yet.
        Blocks of a launched request go back when the step ends: until then it may write them.
        """
        outputs: list[RequestOutput] = []
        for state in self._requests.find(request_id):
            if sibling is None or (sibling == state.sibling and not state.num_unforked):
                outputs += state.final_outputs("abort", now)
                self._requests.finish(state)
                if state not in self._launched:
                    self._blocks.release(state)
        return outputs

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
        for state, num_tokens in step.num_tokens.items():
            state.timeline.scheduled(now)
            self._serve_input(state, num_tokens)
        return StepPlan(
            step=self._num_steps,
            scheduled=tuple(state.scheduled(count) for state, count in step.num_tokens.items()),
            copies=tuple(step.copies.values()),
            preempted=tuple(step.preempted),
        )

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Takes in what the launched `plan` computed: an output for each request that got a token or failed.

        What was computed for a row that failed never bears a name in the prefix cache.
        """
        outputs: list[RequestOutput] = []
        for row, state in enumerate(self._land(plan)):
            if state.status == "finished":  # aborted while the step could still write its blocks
                self._blocks.release(state)
            elif row in result.errors:
                outputs += self._fail(state, result.errors[row], now)
            else:
                self._advance(state, plan.scheduled[row].num_scheduled_tokens)
                outputs += self._take_tokens(state, result, row, now)
        self._sum_waste()
        return outputs

    def fail(self, plan: StepPlan, now: float) -> list[RequestOutput]:
        """Ends the launched `plan` without a result: its requests end with an error, no one else's.

        All KV counts as lost: the others begin again, and nothing is cached any more.
        """
        outputs: list[RequestOutput] = []
        self._num_failed_steps += 1
        for state in self._land(plan):
            if state.status == "finished":
                self._blocks.release(state)
            else:
                outputs += self._fail(state, "engine_error", now)
        for state in list(self._requests.running):
            self._blocks.release(state)
            self._requests.restart(state)
        self._blocks.clear_cache()
        return outputs

    def _serve_input(self, state: RequestState, num_tokens: int) -> None:
        service = state.launch(num_tokens)
        if any(service):
            self._policy.served(state, service)

    def _land(self, plan: StepPlan) -> tuple[RequestState, ...]:
        if plan.step != self._num_steps or len(plan.scheduled) != len(self._launched):
            raise RuntimeError(f"step {plan.step} is not the one in flight")
        landed, self._launched = self._launched, ()
        return landed

    def _advance(self, state: RequestState, num_tokens: int) -> None:
        self._num_computed_tokens += num_tokens
        self._num_recomputed_tokens += state.advance(num_tokens)
        self._blocks.register(state)

    def _fail(self, state: RequestState, error_code: str, now: float) -> list[RequestOutput]:
        self._num_failed_requests += state.num_seats
        outputs = state.final_outputs("error", now, error_code)
        self._requests.finish(state)
        self._blocks.discard(state)
        return outputs

    def _take_tokens(
        self, state: RequestState, result: StepResult, row: int, now: float
    ) -> list[RequestOutput]:
        """The row's token, and the first ones of siblings that are forked with it."""
        token_id = result.token_ids[row]
        if token_id is None:
            return []
        siblings = state.fork()
        for sibling in siblings:
            self._blocks.share(state, sibling)
            self._requests.fork(sibling)
        first = SampledToken(token_id, result.logprobs.get(row))
        drawn = (first, *result.siblings.get(row, ()))
        return [self._take_token(*taken, now) for taken in zip((state, *siblings), drawn, strict=True)]

    def _take_token(self, state: RequestState, drawn: SampledToken, now: float) -> RequestOutput:
        state.append(drawn.token_id, now)
        self._policy.served(state, _ONE_TOKEN)
        finish_reason = _finish_reason(state)
        output = state.token_output(drawn.logprobs, finish_reason, now)
        if finish_reason is not None:
            self._requests.finish(state)
            self._blocks.release(state)
        return output

    def _holders(self) -> list[RequestState]:
        aborted = (state for state in self._launched if state.status == "finished")
        return [*self._requests.running, *aborted]

    def _sum_waste(self) -> None:
        self._sum_empty_slots += self._blocks.num_empty_slots(self._holders())
        self._sum_owned_slots += self._blocks.num_owned_slots

    def counters(self) -> EngineCounters:
        pool, prefix = self._blocks.pool, self._blocks.cache.stats
        waiting, running = self._requests.waiting, self._requests.running
        empty_slots = self._blocks.num_empty_slots(self._holders())
        return EngineCounters(
            requests_running=len(running),
            requests_waiting=len(waiting),
            queued_tokens=sum(
                max(0, state.num_prompt_tokens - state.num_computed_tokens) for state in (*waiting, *running)
            ),
            blocks_total=pool.num_blocks,
            blocks_in_use=pool.num_owned,
            blocks_evictable=pool.num_evictable,
            kv_waste_ratio=empty_slots / max(1, self._blocks.num_owned_slots),
            preemptions_total=self._num_preemptions,
            prefix_queries_tokens_total=prefix.queries_tokens,
            prefix_hits_tokens_total=prefix.hit_tokens,
            kv_empty_slots_total=self._sum_empty_slots,
            kv_owned_slots_total=self._sum_owned_slots,
            computed_tokens_total=self._num_computed_tokens,
            recomputed_tokens_total=self._num_recomputed_tokens,
            evictions_total=pool.num_evictions,
            failed_requests_total=self._num_failed_requests,
            failed_steps_total=self._num_failed_steps,
            prefix_miss_cold_tokens_total=prefix.cold_tokens,
            prefix_miss_evicted_tokens_total=prefix.evicted_tokens,
            prefix_miss_diverged_tokens_total=prefix.diverged_tokens,
            prefix_miss_below_block_tokens_total=prefix.below_block_tokens,
            prefix_attainable_hits_tokens_total=prefix.attainable_tokens,
        )

    def check_integrity(self) -> None:
        """Raises IntegrityError unless blocks, tables and promises agree. O(num_blocks)."""
        self._blocks.check_integrity(self._holders())
        if any(state.block_table or state.num_computed_tokens for state in self._requests.waiting):
            raise IntegrityError("a waiting request holds blocks")
        if self._requests.num_seats_taken != sum(state.num_seats for state in self._requests.running):
            raise IntegrityError(
                f"{self._requests.num_seats_taken} seats are not those of the running requests"
            )
        kept = sum(
            self._blocks.num_outstanding(state) for state in self._requests.running if state.is_reserved
        )
        if kept > self._blocks.pool.num_available:
            raise IntegrityError(f"{kept} blocks are kept for reserved requests, but fewer are available")


def _finish_reason(state: RequestState) -> FinishReason | None:
    if state.is_at_end:
        return "stop"
    return "length" if state.num_tokens >= state.max_num_tokens else None
