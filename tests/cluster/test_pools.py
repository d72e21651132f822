"""A gateway's pools: found by looking, let go when they are gone, and one set of replicas out of all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from cluster.pools import ReplicaPools
from cluster.replica_registry import Listener
from tests.cluster.fake_replica import FakeReplica, settle


class FakePool:
    def __init__(self, listener: Listener) -> None:
        self.list = listener
        self.is_closed = False

    def link(self, replica_id: str) -> FakeReplica:
        return FakeReplica(replica_id)

    async def close(self) -> None:
        self.is_closed = True


class Rig:
    def __init__(self) -> None:
        self.opened: list[tuple[str, FakePool]] = []
        self.heard: list[frozenset[str]] = []
        self.failure: Exception | None = None
        """What opening a pool raises."""
        self.looks: asyncio.Queue[frozenset[str] | Exception] = asyncio.Queue()
        self.pools = ReplicaPools(self._look, self._open, self.heard.append)

    async def _look(self) -> frozenset[str]:
        seen = await self.looks.get()
        if isinstance(seen, Exception):
            raise seen
        return seen

    def _open(self, pool_id: str, listener: Listener) -> FakePool:
        if self.failure is not None:
            raise self.failure
        pool = FakePool(listener)
        self.opened.append((pool_id, pool))
        return pool

    def pool(self, pool_id: str) -> FakePool:
        """The last one that was opened under this id."""
        return dict(self.opened)[pool_id]


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_the_replicas_are_the_union_of_what_the_pools_list(rig: Rig) -> None:
    rig.pools.set_pools({"1", "2"})
    rig.pool("1").list(frozenset({"a", "b"}))
    rig.pool("2").list(frozenset({"c"}))
    rig.pool("1").list(frozenset({"b"}))
    assert rig.heard == [{"a", "b"}, {"a", "b", "c"}, {"b", "c"}]


async def test_a_replica_is_reached_through_its_own_pool_before_anybody_hears_of_it(rig: Rig) -> None:
    reached: list[str] = []

    def connect_all(replica_ids: frozenset[str]) -> None:
        reached.extend(rig.pools.connect(one).replica_id for one in sorted(replica_ids))  # type: ignore[attr-defined]

    rig.pools = ReplicaPools(rig._look, rig._open, connect_all)
    rig.pools.set_pools({"1", "2"})
    rig.pool("2").list(frozenset({"c"}))
    assert reached == ["c"]
    with pytest.raises(LookupError, match="no pool lists replica a"):
        rig.pools.connect("a")


async def test_a_pool_is_opened_once_and_the_others_stay(rig: Rig) -> None:
    for pool_ids in ({"1"}, {"1", "2"}, {"1", "2"}):
        rig.pools.set_pools(pool_ids)
    assert [pool_id for pool_id, _ in rig.opened] == ["1", "2"]


async def test_a_pool_that_is_gone_is_closed_and_may_come_back_as_a_new_one(rig: Rig) -> None:
    rig.pools.set_pools({"1"})
    first = rig.pool("1")
    rig.pools.set_pools(set())
    await settle()
    assert first.is_closed
    rig.pools.set_pools({"1"})
    assert rig.pool("1") is not first


async def test_a_pool_that_still_lists_replicas_is_kept_whatever_the_look_says(rig: Rig) -> None:
    """A controller that has just restarted may know nothing yet; the links must outlive it."""
    rig.pools.set_pools({"1"})
    rig.pool("1").list(frozenset({"a"}))
    rig.pools.set_pools(set())
    await settle()
    assert not rig.pool("1").is_closed
    rig.pool("1").list(frozenset())
    rig.pools.set_pools(set())
    await settle()
    assert rig.pool("1").is_closed
    assert rig.heard == [{"a"}, frozenset()]


async def test_what_a_closed_pool_says_is_not_heard(rig: Rig) -> None:
    rig.pools.set_pools({"1"})
    closed = rig.pool("1")
    rig.pools.set_pools(set())
    closed.list(frozenset({"a"}))
    assert rig.heard == []


@pytest.fixture
async def following(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr("cluster.pools.LOOK_EVERY_S", 0)
    task = asyncio.ensure_future(rig.pools.follow())
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("following")
async def test_following_looks_again_after_a_look_that_failed(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for seen in (frozenset({"1"}), ConnectionError("away"), frozenset({"1", "2"})):
        rig.looks.put_nowait(seen)
        await settle()
    assert [pool_id for pool_id, _ in rig.opened] == ["1", "2"]
    assert caplog.messages == ["the pools could not be read: ConnectionError"]


@pytest.mark.usefixtures("following")
async def test_a_pool_that_cannot_be_opened_is_told_with_its_trace_and_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.failure = TypeError("a fault of ours")
    rig.looks.put_nowait(frozenset({"1"}))
    await settle()
    (told,) = caplog.records
    assert told.levelno == logging.ERROR
    assert told.exc_info
    assert told.exc_info[1] is rig.failure
    rig.failure = None
    rig.looks.put_nowait(frozenset({"1"}))
    await settle()
    assert [pool_id for pool_id, _ in rig.opened] == ["1"]
