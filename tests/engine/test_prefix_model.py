"""Any history of prompts: hits, reasons and evictions are those of a model that remembers everything."""

from __future__ import annotations

from random import Random
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_allocator import BlockAllocator
from engine.prefix_stats import PrefixStats
from engine.request_state import RequestState
from tests.builders import make_config, make_request
from tests.engine.prefix_model import PrefixModel

BLOCK_SIZE = 2
NUM_BLOCKS = 10
"""So 44 ghosts, with the null block: more than the 40 different blocks that there are."""

ROOTS = (b"root 1", b"root 2")

Action = Literal["compute", "return", "release", "fail", "clear"]
Op = tuple[Action, bytes, tuple[int, ...], int]

ACTIONS: tuple[Action, ...] = (*["compute"] * 6, "return", "release", "release", "release", "fail")
_ops = st.tuples(
    st.sampled_from([*ACTIONS, "clear"]),
    st.sampled_from(ROOTS),
    st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple),
    st.integers(0, 99),
)


class Run:
    """Plays a history on both. Who holds blocks is chosen by number."""

    def __init__(self) -> None:
        self.config = make_config(num_blocks=NUM_BLOCKS + 1, block_size=BLOCK_SIZE)
        self.allocator = BlockAllocator(self.config)
        self.model = PrefixModel(NUM_BLOCKS, BLOCK_SIZE)
        self.held: list[RequestState] = []
        self.expected = PrefixStats()

    def play(self, op: Op) -> None:
        action, root, prompt, choice = op
        if action == "compute":
            request = make_request("r", prompt, hash_root=root, block_size=BLOCK_SIZE)
            self.compute(RequestState(request, self.config, arrival_order=0, now=0.0))
        elif action == "clear":
            while self.held:
                self.release(self.held[-1], has_failed=False)
            self.allocator.clear_cache()
            self.model.clear()
        elif self.held:
            state = self.held[choice % len(self.held)]
            self.release(state, has_failed=action == "fail")
            if action == "return":
                state.preempt(now=0.0)
                self.compute(state)
        self.check()

    def compute(self, state: RequestState) -> None:
        """The whole prompt in one step, where there is room for it."""
        root, prompt = state.request.hash_root, state.request.prompt_token_ids
        matched = self.allocator.match(state)
        needed = self.allocator.num_taken(state, matched, len(prompt))
        assert needed == self.model.num_needed(root, prompt)
        if needed > self.allocator.pool.num_available:
            return
        is_first = state.num_cached_tokens is None
        lookup = self.model.look_up(root, prompt)
        assert len(matched) * BLOCK_SIZE == lookup.hit_tokens
        self.allocator.adopt(state, matched)
        self.allocator.grow(state, state.num_computed_tokens, len(prompt))
        state.num_computed_tokens = len(prompt)
        self.allocator.register(state)
        self.model.compute(root, prompt)
        self.held.append(state)
        if is_first:
            assert state.prefix_lookup == lookup
            self.expected += lookup

    def release(self, state: RequestState, *, has_failed: bool) -> None:
        self.held.remove(state)
        if has_failed:
            self.allocator.discard(state)
        else:
            self.allocator.release(state)
        self.model.release(state.request.hash_root, state.request.prompt_token_ids, has_failed=has_failed)

    def check(self) -> None:
        self.allocator.check_integrity(self.held)
        pool, stats = self.allocator.pool, self.allocator.cache.stats
        assert (pool.num_free, pool.num_evictable) == (self.model.num_free, len(self.model.evictable))
        assert stats == self.expected


@settings(max_examples=100)
@given(st.lists(_ops, max_size=60))
def test_the_cache_says_what_a_model_that_remembers_everything_says(history: list[Op]) -> None:
    run = Run()
    for op in history:
        run.play(op)


def test_so_it_does_over_a_long_history_in_which_every_reason_is_met() -> None:
    run, random = Run(), Random(1)
    for _ in range(5000):
        prompt = tuple(random.randint(0, 1) for _ in range(random.randint(1, 5)))
        action: Action = random.choice(ACTIONS) if random.random() < 0.99 else "clear"
        run.play((action, random.choice(ROOTS), prompt, random.randint(0, 99)))
    total = run.allocator.cache.stats
    reasons = (total.hit_tokens, total.evicted_tokens, total.diverged_tokens, total.cold_tokens)
    assert min(reasons) > 250
