"""Block tables against a brute-force model: what every holder reads is what it wrote.

The model keeps, for each block, the tokens that were written into it, and finds owners and states by
looking through everything. It decides nothing: any table that reads back right and wastes no block
is right.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from engine.block_allocator import BlockAllocator
from engine.block_events import NOBODY, BlockListener
from engine.config import EngineConfig
from engine.request_state import RequestState
from tests.builders import make_request

MAX_LIVE = 6
_UNWRITTEN = -1


class AllocatorHistory:
    """Owns an allocator, the requests on it, and the content of its blocks."""

    def __init__(self, config: EngineConfig, listener: BlockListener = NOBODY) -> None:
        self.allocator = BlockAllocator(config, listener)
        self.live: list[RequestState] = []
        self.done: Counter[str] = Counter()
        self._tokens: dict[RequestState, list[int]] = {}
        self._config = config
        self._size = config.block_size
        self._content = [[_UNWRITTEN] * self._size for _ in range(config.num_blocks)]
        self._num_started = 0

    # --- operations: each does nothing where there is no room for it ----------------------------

    def start(self, prompt: tuple[int, ...], n: int) -> None:
        """Alloc: admits a request on what is cached of it and computes its prompt."""
        if len(self.live) >= MAX_LIVE:
            return
        self._num_started += 1
        request = make_request(f"r{self._num_started}", prompt, max_tokens=1000, block_size=self._size, n=n)
        state = RequestState(request, self._config, arrival_order=self._num_started, now=0.0)
        matched = self.allocator.match(state)
        taken = self.allocator.num_taken(state, matched, state.num_tokens)
        if taken > self.allocator.pool.num_available:
            return
        num_available = self.allocator.pool.num_available
        self.allocator.adopt(state, matched)
        self._tokens[state] = list(prompt)
        self._compute(state)
        assert num_available - self.allocator.pool.num_available <= taken, "it took more than announced"
        self.live.append(state)
        self.done["start"] += 1
        self.done["hit"] += len(matched)

    def append(self, choice: int, token_id: int) -> None:
        """One more token; copies a shared block before it is written."""
        if not self.live:
            return
        state = self.live[choice % len(self.live)]
        uncomputed = state.num_uncomputed_tokens
        needed = self.allocator.num_missing(state, state.num_tokens + (uncomputed == 0))
        needed += self.allocator.must_copy(state, state.num_computed_tokens)
        if needed <= self.allocator.pool.num_available:
            if uncomputed == 0:
                state.append(token_id, 0.0)
                self._tokens[state].append(token_id)
            self._compute(state)
            self.done["append"] += 1

    def fork(self, choice: int) -> None:
        """Share: the siblings of a request that has just computed its prompt."""
        able = [state for state in self.live if state.num_unforked and state.num_output_tokens == 0]
        if not able:
            return
        leader = able[choice % len(able)]
        for sibling in leader.fork():
            self.allocator.share(leader, sibling)
            self._tokens[sibling] = list(self._tokens[leader])
            self.live.append(sibling)
            self.done["fork"] += 1

    def end(self, choice: int) -> None:
        """Free, or abort: for the blocks there is no difference."""
        if self.live:
            self.allocator.release(self._pop(choice))
            self.done["end"] += 1

    def fail(self, choice: int) -> None:
        if self.live:
            self.allocator.discard(self._pop(choice))
            self.done["fail"] += 1

    def preempt(self, choice: int) -> None:
        """Gives everything back; comes again at once if there is room, else for good."""
        if not self.live:
            return
        state = self.live.pop(choice % len(self.live))
        self.allocator.release(state)
        state.preempt(0.0)
        matched = self.allocator.match(state)
        if self.allocator.num_taken(state, matched, state.num_tokens) <= self.allocator.pool.num_available:
            self.allocator.adopt(state, matched)
            self._compute(state)
            self.live.append(state)
            self.done["preempt"] += 1
        else:
            del self._tokens[state]

    def clear(self) -> None:
        while self.live:
            self.end(0)
        self.allocator.clear_cache()
        assert self.allocator.pool.num_free == self.allocator.pool.num_blocks
        self.done["clear"] += 1

    def _pop(self, choice: int) -> RequestState:
        state = self.live.pop(choice % len(self.live))
        del self._tokens[state]
        return state

    def _compute(self, state: RequestState) -> None:
        """All that is known of it and not computed, as one step would."""
        start, end = state.num_computed_tokens, state.num_tokens
        copy = self.allocator.grow(state, start, end)
        if copy is not None:
            self.done["copy"] += 1
            self._content[copy[1]] = list(self._content[copy[0]])
        for position, token_id in enumerate(state.scheduled(end - start).token_ids, start=start):
            assert token_id == self._tokens[state][position]
            self._content[state.block_table[position // self._size]][position % self._size] = token_id
        state.advance(end - start)
        self.allocator.register(state)

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        self.allocator.check_integrity(self.live)
        pool = self.allocator.pool
        assert pool.num_free + pool.num_evictable + pool.num_owned == pool.num_blocks
        assert pool.num_owned == len({block for state in self.live for block in state.block_table})
        for state in self.live:
            slots = [token_id for block in state.block_table for token_id in self._content[block]]
            assert slots[: state.num_computed_tokens] == self._tokens[state][: state.num_computed_tokens]

    def random_operation(self, random: Random) -> None:
        operation = random.choices(_OPERATIONS, _WEIGHTS)[0]
        choice = random.getrandbits(16)
        if operation == "start":
            self.start(random_prompt(random, self._size), n=random.choice((1, 1, 2, 3)))
        elif operation == "append":
            self.append(choice, random.getrandbits(1))
        elif operation == "clear":
            self.clear()
        else:
            getattr(self, operation)(choice)


_OPERATIONS = ("start", "append", "fork", "end", "fail", "preempt", "clear")
_WEIGHTS = (250, 500, 100, 120, 10, 20, 1)


def random_prompt(random: Random, block_size: int) -> tuple[int, ...]:
    """Of few tokens, so that prefixes meet often; up to some 7 blocks."""
    shared, own = random.randrange(4 * block_size), random.randint(1, 3 * block_size)
    return (7,) * shared + tuple(random.getrandbits(1) for _ in range(own))
