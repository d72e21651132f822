"""Random histories: Redis, memory and a model of plain sets say the same after every step."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from cluster.index.prefix_index import ENTRY_TTL_S, INDEX_EVERY, Changes, indexed
from tests.cluster.index_stores import ROOT, MemoryStore, RedisStore, a_chain

Chain = tuple[bytes, ...]

TRUNK = a_chain(3)
CHAINS = (
    TRUNK + a_chain(5, first=100),
    TRUNK + a_chain(2, first=200) + a_chain(2, first=300),
    a_chain(7, first=400),
)
ROOTS = (ROOT, b"another root")
REPLICAS = range(1, 5)


class Hold(NamedTuple):
    """A replica holds a chain down to a depth, in indexed blocks; what it held before is told again."""

    replica: int
    root: bytes
    chain: Chain
    depth: int

    def changes(self) -> Changes:
        return Changes(self.root, stored=tuple(indexed(self.chain)[: self.depth]))


class Evict(NamedTuple):
    """A replica evicts a chain's block and all that stand behind it, in every chain."""

    replica: int
    root: bytes
    chain: Chain
    depth: int

    def changes(self) -> Changes:
        upto = self.chain[: (self.depth + 1) * INDEX_EVERY]
        behind = {
            block for chain in CHAINS if chain[: len(upto)] == upto for block in indexed(chain)[self.depth :]
        }
        return Changes(self.root, evicted=tuple(behind))


class Die(NamedTuple):
    """A replica is found dead: the others drop it as they publish."""

    replica: int


class Forget(NamedTuple):
    """The time of all entries runs out."""


Deed = Hold | Evict | Die | Forget


def deeds() -> st.SearchStrategy[Deed]:
    place = (
        st.sampled_from(REPLICAS), st.sampled_from(ROOTS), st.sampled_from(CHAINS), st.integers(0, 8)
    )  # fmt: skip
    hold = st.builds(Hold, *place)
    return st.one_of(hold, hold, hold, st.builds(Evict, *place), st.builds(Die, place[0]), st.builds(Forget))


class Model:
    """Every claim as (replica, root, block)."""

    def __init__(self) -> None:
        self.claims: set[tuple[int, bytes, bytes]] = set()
        self.dead: frozenset[int] = frozenset()

    def publish(self, replica: int, changes: Changes) -> int:
        before = self.claims
        self.claims = self.claims | {(replica, changes.root, block) for block in changes.stored}
        self.claims = self.claims - {(replica, changes.root, block) for block in changes.evicted}
        return len(before ^ self.claims)

    def look_up(self, root: bytes, chain: Chain, replicas: list[int]) -> dict[int, int]:
        def depth(replica: int) -> int:
            held = takewhile(lambda block: (replica, root, block) in self.claims, indexed(chain))
            return len(list(held))

        depths = {replica: depth(replica) * INDEX_EVERY for replica in replicas}
        return {replica: blocks for replica, blocks in depths.items() if blocks}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(deeds(), min_size=1, max_size=12))
async def test_both_stores_and_the_model_tell_the_same(redis: Redis, history: list[Deed]) -> None:
    await redis.flushall()
    model, stores = Model(), (MemoryStore(), RedisStore(redis))
    for deed in history:
        if isinstance(deed, Forget):
            model.claims = set()
            for store in stores:
                await store.pass_time(ENTRY_TTL_S)
        elif isinstance(deed, Die):
            model.dead |= {deed.replica}
        elif deed.replica not in model.dead:
            changed = model.publish(deed.replica, deed.changes())
            for store in stores:
                assert await store.index.publish(deed.replica, [deed.changes()], model.dead) == changed
        living = [replica for replica in REPLICAS if replica not in model.dead]
        for root in ROOTS:
            for chain in CHAINS:
                expected = model.look_up(root, chain, living)
                for store in stores:
                    assert await store.index.look_up(root, chain, living) == expected
