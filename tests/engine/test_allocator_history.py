"""No block is lost, doubled or read by the wrong request, whatever the history."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.builders import make_config
from tests.engine.allocator_history import AllocatorHistory

CHECK_EACH_OF_THE_FIRST = 100_000
THEN_EVERY = 50
SIZES = ((9, 2, True), (17, 3, True), (33, 2, True), (33, 16, True), (13, 2, False))
"""Blocks with the null block, slots in a block, whether prefixes are cached."""


@pytest.mark.parametrize("num_operations", [200_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_random_operations_equal_the_brute_force_model(num_operations: int) -> None:
    done: Counter[str] = Counter()
    random = Random(20)
    count = 0
    for num_blocks, block_size, is_caching in SIZES:
        config = make_config(
            num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=is_caching, max_num_seqs=32
        )
        history = AllocatorHistory(config)
        for _ in range(num_operations // len(SIZES)):
            history.random_operation(random)
            count += 1
            if (
                count % (num_operations // len(SIZES)) < CHECK_EACH_OF_THE_FIRST // len(SIZES)
                or count % THEN_EVERY == 0
            ):
                history.check()
        history.clear()
        history.check()
        done += history.done
        done["evict"] += history.allocator.pool.num_evictions
    assert all(done[name] > 1000 for name in ("start", "append", "hit", "fork", "copy", "end", "evict")), done
    assert all(done[name] > 100 for name in ("fail", "preempt", "clear")), done


class AllocatorMachine(RuleBasedStateMachine):
    """The same operations, chosen and shrunk by Hypothesis."""

    @initialize(num_blocks=st.integers(2, 12), block_size=st.integers(1, 3), is_caching=st.booleans())
    def begin(self, num_blocks: int, block_size: int, is_caching: bool) -> None:
        self.history = AllocatorHistory(
            make_config(num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=is_caching)
        )

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9), n=st.integers(1, 3))
    def start(self, prompt: list[int], n: int) -> None:
        self.history.start(tuple(prompt), n)

    @rule(choice=st.integers(0, 99), token_id=st.integers(0, 1))
    def append(self, choice: int, token_id: int) -> None:
        self.history.append(choice, token_id)

    @rule(choice=st.integers(0, 99), name=st.sampled_from(["fork", "end", "fail", "preempt"]))
    def other(self, choice: int, name: str) -> None:
        getattr(self.history, name)(choice)

    @rule()
    def clear(self) -> None:
        self.history.clear()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "history"):
            self.history.check()


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=80, stateful_step_count=40)
