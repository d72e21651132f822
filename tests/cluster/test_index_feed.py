"""A replica's part of the index, as gateways find it; and the replica, which must not notice the index."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from cluster.index.block_news import BlockNews
from cluster.index.digest_round import ROUND_S
from cluster.index.feed import MAX_CLAIMS, IndexFeed, claim_incarnation
from cluster.index.memory_index import MemoryPrefixIndex
from cluster.index.prefix_index import (
    HEARTBEAT_S,
    INCARNATION_TTL_S,
    Changes,
    HeartbeatReply,
    IndexUnavailable,
    PrefixIndex,
)
from cluster.index.redis_index import RedisPrefixIndex
from cluster.link import Abort
from cluster.redis_server import RedisServer
from engine.block_chain import BlockChain
from tenants.redis_client import connect
from tests.builders import FakeClock
from tests.cluster.index_stores import RedisStore

ME, OTHER = 7, 8
ROOT = b"root"
CHAIN = BlockChain(ROOT, range(4 * 48), 4)
HASHES = [block.block_hash for block in CHAIN]
TICK_S = 0.125


class ShakyIndex(MemoryPrefixIndex):
    """Fails as told, and remembers its calls."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.failure: Exception | None = None
        self.calls: list[str] = []
        self.dead_told: frozenset[int] = frozenset()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.failure is not None:
            raise self.failure

    async def claim(self, incarnation: int) -> bool:
        self._call("claim")
        return await super().claim(incarnation)

    async def beat(self, incarnation: int) -> HeartbeatReply:
        self._call("beat")
        return await super().beat(incarnation)

    async def publish(self, incarnation: int, changes: Sequence[Changes], dead: frozenset[int]) -> int:
        self._call("publish")
        self.dead_told = dead
        return await super().publish(incarnation, changes, dead)


class Rig:
    """A feed whose time is the test's; `hold` and `drop` stand for the engine thread."""

    def __init__(self, index: PrefixIndex, clock: FakeClock) -> None:
        self.index = index
        self.clock = clock
        self.news = BlockNews()
        self.aborts: list[Abort] = []
        self.feed = IndexFeed(index, ME, self.news, self.aborts.extend, clock)
        self.held = 0

    def hold(self, blocks: int) -> None:
        for block in list(CHAIN)[self.held : blocks]:
            self.news.stored(ROOT, block)
        for block in reversed(list(CHAIN)[blocks : self.held]):
            self.news.evicted(block)
        self.held = blocks

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            await self.feed.tick()

    async def claimed(self) -> int:
        """Blocks that a gateway finds."""
        return (await self.index.look_up(ROOT, HASHES, [ME])).get(ME, 0)

    @property
    def state(self) -> str:
        return self.feed.figures.state


@pytest.fixture
async def index() -> ShakyIndex:
    return ShakyIndex(FakeClock(1000.0))


@pytest.fixture
async def rig(index: ShakyIndex) -> Rig:
    """Claimed, beating, nothing held."""
    rig = Rig(index, index._clock)  # type: ignore[arg-type]
    await claim_incarnation(index, ME)
    await rig.feed.tick()
    assert rig.state == "exact"
    index.calls.clear()
    return rig


# --- what it tells ------------------------------------------------------------------------------


async def test_gateways_find_what_the_engine_holds_within_a_tick(rig: Rig) -> None:
    rig.hold(40)
    await rig.run(TICK_S)
    assert await rig.claimed() == 40
    rig.hold(18)
    await rig.run(TICK_S)
    assert await rig.claimed() == 16
    rig.news.cleared()
    await rig.run(TICK_S)
    assert await rig.claimed() == 0


async def test_it_beats_once_a_heartbeat_and_publishes_only_where_there_is_news(
    rig: Rig, index: ShakyIndex
) -> None:
    await rig.run(10 * HEARTBEAT_S)
    assert index.calls == ["beat"] * 10
    rig.hold(40)
    await rig.run(TICK_S)
    assert index.calls[10:] == ["publish"]


async def test_aborts_that_gateways_left_reach_the_engine_once(rig: Rig) -> None:
    left = (Abort("r-0"), Abort("s-1", 2))
    await rig.index.leave_aborts(ME, left)
    await rig.run(3 * HEARTBEAT_S)
    assert rig.aborts == [*left]


async def test_a_dead_replica_s_claims_are_taken_out_on_the_way(rig: Rig, index: ShakyIndex) -> None:
    await index.claim(OTHER)
    await index.publish(OTHER, [Changes(ROOT, tuple(HASHES[3::4]))], frozenset())
    await rig.run(INCARNATION_TTL_S + HEARTBEAT_S)
    rig.hold(40)
    await rig.run(TICK_S)
    assert index.dead_told == {OTHER}
    assert await index.look_up(ROOT, HASHES, [ME, OTHER]) == {ME: 40}


# --- the index away -------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [IndexUnavailable("down"), KeyError("a fault of ours")])
async def test_an_index_that_fails_raises_nothing_and_is_asked_once_a_heartbeat(
    rig: Rig, index: ShakyIndex, failure: Exception
) -> None:
    rig.hold(40)
    await rig.run(TICK_S)
    index.failure = failure
    rig.hold(20)
    await rig.run(1)
    assert rig.state == "off"
    index.calls.clear()
    await rig.run(10 * HEARTBEAT_S)
    assert index.calls == ["beat"] * 10
    index.failure = None
    await rig.run(HEARTBEAT_S + 4 * TICK_S)
    assert await rig.claimed() == 20


async def test_a_change_of_state_is_logged_once_with_its_reason(
    rig: Rig, index: ShakyIndex, caplog: pytest.LogCaptureFixture
) -> None:
    rig.hold(40)
    await rig.run(TICK_S)
    caplog.set_level(logging.INFO, "headrace")
    index.failure = IndexUnavailable("no answer in time")
    await rig.run(5)
    index.failure = None
    await rig.run(5)
    assert caplog.messages == [
        "prefix index: off, was exact: no answer in time",
        "prefix index: degraded, was off: the index did not know this replica",
        "prefix index: exact, was degraded: a whole round of the digest found nothing to repair",
    ]


async def test_the_task_runs_until_it_is_closed_whatever_happens(rig: Rig, index: ShakyIndex) -> None:
    index.failure = KeyError("a fault of ours")
    rig.hold(40)
    rig.clock.advance(HEARTBEAT_S)
    rig.feed.start()
    async with asyncio.timeout(10):
        while "beat" not in index.calls:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
    task = rig.feed._task
    assert task is not None
    assert not task.done()
    rig.feed.close()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_a_feed_that_never_started_can_be_closed(rig: Rig) -> None:
    rig.feed.close()
    assert rig.feed._task is None


# --- the incarnation ----------------------------------------------------------------------------------


async def test_the_drawn_number_is_claimed(index: ShakyIndex) -> None:
    assert await claim_incarnation(index, ME) == ME
    assert not await index.claim(ME)


async def test_a_number_that_is_taken_is_drawn_anew(index: ShakyIndex) -> None:
    await index.claim(ME)
    claimed = await claim_incarnation(index, ME)
    assert claimed != ME
    assert 0 <= claimed < 2**32
    assert not await index.claim(claimed)


async def test_it_is_tried_a_few_times_only(index: ShakyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.index.feed.secrets.randbits", lambda bits: ME)
    await index.claim(ME)
    index.calls.clear()
    assert await claim_incarnation(index, ME) == ME
    assert index.calls == ["claim"] * MAX_CLAIMS


async def test_a_replica_that_starts_without_the_index_is_known_with_its_first_heartbeat(
    index: ShakyIndex,
) -> None:
    index.failure = IndexUnavailable("down")
    assert await claim_incarnation(index, ME) == ME
    rig = Rig(index, index._clock)  # type: ignore[arg-type]
    rig.hold(40)
    await rig.run(5)
    index.failure = None
    await rig.run(HEARTBEAT_S + TICK_S)
    assert await rig.claimed() == 40
    assert (await index.beat(ME)).was_alive


# --- a real Redis in trouble ---------------------------------------------------------------------------


class Trouble:
    """A server of the test's own, a feed on it, and what can happen to either."""

    def __init__(self, home: Any) -> None:
        self._home = home
        self.server = RedisServer.start(home, home)
        self.redis: Redis = connect(self.server.url)
        self.rig = Rig(RedisPrefixIndex(self.redis), FakeClock(1000.0))

    async def flushall(self) -> None:
        await self.redis.flushall()

    async def script_flush(self) -> None:
        await self.redis.script_flush()

    async def restart(self) -> None:
        self.server.stop()
        await self.rig.run(2 * HEARTBEAT_S)
        assert self.rig.state == "off"
        self.server = RedisServer.start(self._home, self._home)

    async def restart_empty(self) -> None:
        await self.redis.flushall()
        await self.restart()

    async def silence(self) -> None:
        """The server stands still for longer than a call may take."""
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            await self.rig.run(HEARTBEAT_S)
            assert self.rig.state == "off"
        finally:
            os.kill(self.server.pid, signal.SIGCONT)

    async def freeze(self) -> None:
        """The replica stands still for longer than it may, and others take its claims out."""
        await RedisStore(self.redis).pass_time(INCARNATION_TTL_S + 1)
        index = RedisPrefixIndex(self.redis)
        assert ME in (await index.beat(OTHER)).dead
        await index.publish(OTHER, [Changes(ROOT, tuple(HASHES[3::4]))], frozenset({ME}))
        assert await self.rig.claimed() == 0

    async def lost_keys(self) -> None:
        for key in [key async for key in self.redis.scan_iter(match=b"px:{*")][::2]:
            await self.redis.delete(key)


@pytest.fixture
async def trouble(tmp_path: Any) -> AsyncIterator[Trouble]:
    trouble = Trouble(tmp_path)
    yield trouble
    await trouble.redis.aclose()
    trouble.server.stop()


@pytest.mark.parametrize(
    "happens",
    [
        Trouble.flushall,
        Trouble.script_flush,
        Trouble.restart,
        Trouble.restart_empty,
        Trouble.silence,
        Trouble.freeze,
        Trouble.lost_keys,
    ],
    ids=lambda happens: happens.__name__,
)
async def test_whatever_happens_to_redis_the_next_rounds_repair(
    trouble: Trouble, happens: Callable[[Trouble], Coroutine[None, None, None]]
) -> None:
    rig = trouble.rig
    await claim_incarnation(rig.index, ME)
    rig.hold(40)
    await rig.run(2 * HEARTBEAT_S)
    assert await rig.claimed() == 40
    await happens(trouble)
    for _ in range(round(ROUND_S + 2 * HEARTBEAT_S)):
        await rig.run(HEARTBEAT_S)
        assert await rig.claimed() <= 40, "never more than it holds"
    assert await rig.claimed() == 40
    rig.hold(12)
    await rig.run(2 * ROUND_S)
    assert await rig.claimed() == 12
    assert rig.state == "exact"
