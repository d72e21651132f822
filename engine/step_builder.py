"""Who gets how many tokens of one step: decodes first, then prefills in policy order."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from engine.block_allocator import BlockAllocator
from engine.config import EngineConfig
from engine.policy import SchedulingPolicy
from engine.request_state import RequestState
from engine.request_table import RequestTable

BACKGROUND_PART = 4
"""One of so many of a step's tokens at most is for what nobody waits for. It makes the step longer for all
that are in it, and for who comes meanwhile."""


class StepBuilder:
    """Fills one step's token budget, and admits and preempts on the way. Built anew for each step.

    `num_tokens`, `copies` and `preempted` are the outcome. Every running request ends: the oldest of the
    highest class is never preempted, and the room of reserved requests is theirs alone.
    """

    def __init__(
        self,
        config: EngineConfig,
        policy: SchedulingPolicy,
        blocks: BlockAllocator,
        requests: RequestTable,
        now: float,
    ) -> None:
        self.num_tokens: dict[RequestState, int] = {}
        self.copies: dict[RequestState, tuple[int, int]] = {}
        self.preempted: list[str] = []
        self._config = config
        self._policy = policy
        self._blocks = blocks
        self._requests = requests
        self._now = now
        self._budget_left = config.max_num_batched_tokens
        self._is_admission_closed = False
        self._num_looked_up = 0

    def build(self) -> None:
        self._schedule_decodes()
        self._schedule_prefills()

    def _schedule_decodes(self) -> None:
        decodes = [state for state in self._requests.running if state.num_uncomputed_tokens == 1]
        for state in self._policy.order(decodes):
            if state.status == "running":  # else it made room for one before it
                self._schedule(state, 1)

    def _schedule_prefills(self) -> None:
        """Long prefills get together half of what decodes left, then all that short ones leave."""
        prefills: list[RequestState] = []
        background: list[RequestState] = []
        long_tokens = self._budget_left // 2
        for state in self._prefills():
            if self._budget_left == 0:
                return
            if self._policy.is_background(state):
                background.append(state)
                continue
            prefills.append(state)
            if self._is_long(state):
                long_tokens -= self._schedule_prefill(state, min(long_tokens, self._budget_left))
            else:
                self._schedule_prefill(state, self._budget_left)
        for state in prefills:
            if self._budget_left == 0:
                return
            self._schedule_prefill(state, self._budget_left)
        self._schedule_background(background)

    def _schedule_background(self, prefills: list[RequestState]) -> None:
        left = min(self._budget_left, max(1, self._config.max_num_batched_tokens // BACKGROUND_PART))
        for state in prefills:
            left -= self._schedule_prefill(state, left)

    def _prefills(self) -> Iterator[RequestState]:
        """In policy order. Those that wait are left out once nobody is admitted: there may be thousands."""
        begun = {state: None for state in self._requests.running if state.num_uncomputed_tokens > 1}
        waiting = self._requests.waiting if self._has_seats() else ()
        for state in self._policy.order([*begun, *waiting]):
            begun.pop(state, None)
            if state.status == "running" or self._is_admitting():
                yield state
            elif not begun:
                return

    def _is_long(self, state: RequestState) -> bool:
        """Longer than half the budget, not counting what is computed or cached.

        Of long prompts that wait, no more are looked up than could run: the rest count as uncached.
        """
        half = self._config.max_num_batched_tokens / 2
        if state.num_uncomputed_tokens <= half:
            return False
        if state.status == "running" or self._num_looked_up >= self._config.max_num_seqs:
            return True
        self._num_looked_up += 1
        num_cached_tokens = len(self._blocks.match(state)) * self._config.block_size
        return state.num_tokens - num_cached_tokens > half

    def _schedule_prefill(self, state: RequestState, limit: int) -> int:
        """Up to `limit` more tokens for a request that runs or can be admitted; how many it got."""
        if limit == 0 or (state.status == "waiting" and not self._admit(state)):
            return 0
        return self._schedule(state, limit)

    def _schedule(self, state: RequestState, limit: int) -> int:
        """Up to `limit` more tokens for a running request, with blocks for them; how many it got.

        Others are preempted for its first token of the step only.
        """
        already = self.num_tokens.get(state, 0)
        start = state.num_computed_tokens + already
        wanted = min(limit, state.num_tokens - start)
        if wanted == 0:
            return 0
        while (num_tokens := self._num_placeable(state, start, wanted)) == 0:
            if already or not self._make_room(state):
                return 0
        copy = self._blocks.grow(state, start, start + num_tokens)
        if copy is not None:
            self.copies[state] = copy
        self._budget_left -= num_tokens
        self.num_tokens[state] = already + num_tokens
        return num_tokens

    def _num_placeable(self, state: RequestState, start: int, wanted: int) -> int:
        """How many of `wanted` tokens from position `start` fit into blocks it holds or can take."""
        held = self._blocks.num_slots(state) - start
        must_copy = self._blocks.must_copy(state, start)
        if held >= wanted and not must_copy:
            return wanted
        others = (other for other in self._requests.running if other is not state)
        kept = sum(self._blocks.num_outstanding(other) for other in others if other.is_reserved)
        free_blocks = self._blocks.pool.num_available - kept - must_copy
        return min(wanted, held + free_blocks * self._config.block_size) if free_blocks >= 0 else 0

    # --- admission: the whole prompt at once ------------------------------------------------

    def _has_seats(self, count: int = 1) -> bool:
        return self._requests.num_seats_taken + count <= self._config.max_num_seqs

    def _is_admitting(self) -> bool:
        return self._has_seats() and not self._is_admission_closed

    def _admit(self, state: RequestState) -> bool:
        """Nobody overtakes the first that has no room, nor is let into room made by preemption."""
        if not self._is_admitting():
            return False
        matched = self._blocks.match(state)
        if not (self._has_seats(state.num_seats) and self._has_room(state, matched)):
            self._is_admission_closed = True
            return False
        self._blocks.adopt(state, matched)
        self._requests.admit(state)
        return True

    def _has_room(self, state: RequestState, matched: list[int]) -> bool:
        """Whether all that is promised to it fits, beside what was promised to others."""
        taken = self._blocks.num_taken(state, matched, state.num_promised_tokens) + state.num_unforked
        running = self._requests.running
        promised = sum(self._blocks.num_outstanding(other) for other in running)
        # Alone, a request may fill the pool: nobody else is there to grow.
        watermark = ceil(self._config.watermark * self._blocks.pool.num_blocks) if running else 0
        return taken + promised + watermark <= self._blocks.pool.num_available

    # --- preemption: by recompute -----------------------------------------------------------

    def _make_room(self, state: RequestState) -> bool:
        """Preempts one request. False if there is none to preempt, or it was `state` itself."""
        victims = self._possible_victims()
        if not victims:
            return False
        victim = self._policy.victim(victims)
        self._preempt(victim)
        return victim is not state

    def _possible_victims(self) -> list[RequestState]:
        running = self._requests.running
        oldest = min(running, key=lambda state: (state.priority, state.arrival_order))
        return [state for state in running if state is not oldest and not state.is_reserved]

    def _preempt(self, state: RequestState) -> None:
        self._budget_left += self.num_tokens.pop(state, 0)
        self.copies.pop(state, None)
        self._blocks.release(state)
        self._requests.preempt(state, self._now)
        self.preempted.append(state.request_id)
        self._is_admission_closed = True
