"""The block pool: exact ids, exact eviction order, and never a block in two states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.block_pool import BlockPool, IntegrityError


def make_pool(num_blocks: int, evicted: list[int] | None = None) -> BlockPool:
    """`num_blocks` with the null block; evictions are noted in `evicted`."""
    return BlockPool(num_blocks, on_evict=(evicted if evicted is not None else []).append)


def take(pool: BlockPool, count: int) -> list[int]:
    return [pool.allocate() for _ in range(count)]


def cache(pool: BlockPool, blocks: list[int]) -> None:
    """Caches owned blocks and releases them, in this order."""
    for block in blocks:
        pool.mark_cached(block)
        pool.release(block)


def test_blocks_go_out_from_1_upwards_and_the_null_block_never() -> None:
    assert take(make_pool(5), 4) == [1, 2, 3, 4]


def test_freed_blocks_go_to_the_end_of_the_line() -> None:
    pool = make_pool(5)
    take(pool, 3)
    pool.release(2)
    pool.release(1)
    assert take(pool, 3) == [4, 2, 1]


def test_nothing_is_evicted_while_a_block_is_free() -> None:
    evicted: list[int] = []
    pool = make_pool(4, evicted)
    cache(pool, take(pool, 2))
    assert (pool.allocate(), evicted) == (3, [])
    assert (pool.allocate(), evicted) == (1, [1])


def test_eviction_takes_the_least_recently_released() -> None:
    evicted: list[int] = []
    pool = make_pool(4, evicted)
    take(pool, 3)
    cache(pool, [3, 1, 2])
    assert take(pool, 3) == [3, 1, 2]
    assert evicted == [3, 1, 2]


def test_sharing_takes_a_block_out_of_the_line_and_its_last_release_puts_it_at_the_end() -> None:
    pool = make_pool(4)
    cache(pool, take(pool, 3))
    pool.share(1)
    pool.share(1)
    pool.release(1)
    assert (pool.num_evictable, pool.ref_count(1)) == (2, 1)
    pool.release(1)
    assert take(pool, 3) == [2, 3, 1]


def test_an_evicted_block_is_not_cached_any_more() -> None:
    pool = make_pool(2)
    cache(pool, take(pool, 1))
    pool.allocate()
    pool.release(1)
    assert (pool.num_free, pool.num_evictable) == (1, 0)


def test_an_empty_pool_says_so() -> None:
    pool = make_pool(2)
    pool.allocate()
    with pytest.raises(IndexError, match="no block is free or evictable"):
        pool.allocate()


def test_a_second_release_is_refused() -> None:
    pool = make_pool(2)
    pool.release(pool.allocate())
    with pytest.raises(IntegrityError, match="block 1 is released but not owned"):
        pool.release(1)


def test_only_cached_or_owned_blocks_are_shared_and_only_owned_ones_cached() -> None:
    pool = make_pool(2)
    with pytest.raises(IntegrityError, match="block 1 is cached while nobody owns it"):
        pool.mark_cached(1)
    with pytest.raises(IntegrityError, match="block 1 is shared but neither cached nor owned"):
        pool.share(1)


class ModelPool:
    """The pool, written naively: one list of (block, state) in the order of going out."""

    def __init__(self, num_blocks: int) -> None:
        self.line = [(block, "free") for block in range(1, num_blocks)]
        self.owners: dict[int, int] = {}
        self.cached: set[int] = set()

    def allocate(self) -> int | None:
        for state in ("free", "evictable"):
            for entry in self.line:
                if entry[1] == state:
                    self.line.remove(entry)
                    self.owners[entry[0]] = 1
                    self.cached.discard(entry[0])
                    return entry[0]
        return None

    def share(self, block: int) -> None:
        self.line = [entry for entry in self.line if entry[0] != block]
        self.owners[block] = self.owners.get(block, 0) + 1

    def release(self, block: int) -> None:
        self.owners[block] -= 1
        if self.owners[block] == 0:
            del self.owners[block]
            self.line.append((block, "evictable" if block in self.cached else "free"))


OPERATIONS = st.tuples(st.sampled_from(["allocate", "cache", "share", "release"]), st.integers(0, 99))


@given(st.integers(2, 7), st.lists(OPERATIONS, max_size=60))
def test_any_history_equals_the_naive_model(num_blocks: int, operations: list[tuple[str, int]]) -> None:
    pool, model = make_pool(num_blocks), ModelPool(num_blocks)
    for name, choice in operations:
        if name == "allocate":
            expected = model.allocate()
            assert (pool.allocate() if pool.num_available else None) == expected
        elif name == "share" and model.cached:
            block = sorted(model.cached)[choice % len(model.cached)]
            pool.share(block)
            model.share(block)
        elif name in ("cache", "release") and model.owners:
            block = sorted(model.owners)[choice % len(model.owners)]
            if name == "cache":
                pool.mark_cached(block)
                model.cached.add(block)
            else:
                pool.release(block)
                model.release(block)
        pool.check_integrity()
        assert [pool.ref_count(b) for b in range(num_blocks)] == [
            model.owners.get(b, 0) for b in range(num_blocks)
        ]
        assert pool.num_free + pool.num_evictable + pool.num_owned == num_blocks - 1


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (lambda pool: pool._free.append(0), "null block"),
        (lambda pool: pool._free.append(1), "are not 3 blocks"),
        (lambda pool: pool._free.pop(), "are not 3 blocks"),
        (lambda pool: pool._ref_counts.__setitem__(3, 1), "are not 3 blocks"),
        (lambda pool: pool._ref_counts.__setitem__(3, -1), "negative"),
        (lambda pool: (pool._free.pop(), pool._free.append(2)), "two states"),
        (lambda pool: pool._cached.add(3), "cached block is free"),
        (lambda pool: pool._cached.clear(), "evictable one is not cached"),
    ],
)
def test_the_integrity_check_sees_each_kind_of_corruption(corrupt, complaint: str) -> None:
    pool = make_pool(4)
    cache(pool, take(pool, 2))
    pool.share(1)
    pool.check_integrity()
    corrupt(pool)
    with pytest.raises(IntegrityError, match=complaint):
        pool.check_integrity()
