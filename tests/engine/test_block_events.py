"""Who hears the events of blocks knows at any time which names are cached, and whose."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings

from engine.block_allocator import BlockAllocator
from engine.block_chain import NamedBlock
from engine.block_events import BlockListener
from engine.block_hash import BlockHash
from engine.config import EngineConfig
from engine.request_state import RequestState
from engine.scheduler import Scheduler
from tests.builders import ROOT, make_config, make_request
from tests.engine.allocator_history import AllocatorHistory
from tests.engine.loads import Event, Run, configs, loads


class Account(BlockListener):
    """What is cached, from the events alone. Refuses an event that cannot follow on those before."""

    def __init__(self) -> None:
        self.names: dict[BlockHash, NamedBlock] = {}
        self.roots: dict[BlockHash, bytes] = {}
        self.heard: list[str] = []

    def stored(self, root: bytes, block: NamedBlock) -> None:
        self.heard.append("stored")
        assert block.block_hash not in self.names
        assert block.parent == root if block.depth == 0 else block.parent in self.names
        self.names[block.block_hash], self.roots[block.block_hash] = block, root

    def evicted(self, block: NamedBlock) -> None:
        self.heard.append("evicted")
        assert block.block_hash not in {other.parent for other in self.names.values()}
        assert self.names.pop(block.block_hash) == block

    def cleared(self) -> None:
        self.heard.append("cleared")
        self.names.clear()

    def check(self, allocator: BlockAllocator) -> None:
        assert self.names == {named.block_hash: named for named in allocator.cache._cached.values()}


def test_the_account_equals_the_cache_after_every_operation_of_a_long_history() -> None:
    random, heard = Random(4), set()
    for num_blocks, block_size in ((9, 2), (17, 3), (33, 2)):
        account = Account()
        history = AllocatorHistory(make_config(num_blocks=num_blocks, block_size=block_size), account)
        for _ in range(4000):
            history.random_operation(random)
            account.check(history.allocator)
        assert set(account.roots.values()) == {ROOT}
        heard |= set(account.heard)
    assert heard == {"stored", "evicted", "cleared"}


@settings(max_examples=100)
@given(configs(), loads())
def test_the_account_equals_the_cache_whatever_a_scheduler_is_given(
    config: EngineConfig, events: list[Event]
) -> None:
    account = Account()
    run = Run(config, account)
    for event in events:
        run.play([event])
        account.check(_blocks_of(run.scheduler))
    run.finish()
    account.check(_blocks_of(run.scheduler))


def test_each_block_is_told_with_the_root_of_its_own_chain() -> None:
    account = Account()
    config = make_config()
    allocator = BlockAllocator(config, account)
    for order, root in enumerate((b"mine", b"yours")):
        request = make_request("r", (1, 2, 3, 4, 5), hash_root=root)
        state = RequestState(request, config, arrival_order=order, now=0.0)
        allocator.grow(state, 0, 5)
        state.num_computed_tokens = 5
        allocator.register(state)
    assert sorted(account.roots.values()) == [b"mine", b"yours"]


def _blocks_of(scheduler: Scheduler) -> BlockAllocator:
    return scheduler._blocks
