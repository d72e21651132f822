"""Who lives, in memory and in Redis; and the watch, which asks in the background whether the record does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from redis.asyncio import Redis

from tenants.breaker import MAX_CALL_S, PROBE_EVERY_S, Breaker
from tenants.offline.membership import GATEWAY_TTL_S, REOPENED_TTL_S, Beat, Membership, MemoryMembership
from tenants.offline.redis_membership import GATEWAYS_KEY, RedisMembership
from tenants.offline.watch import Watch
from tenants.redis_client import connect
from tenants.reseed import EPOCH_KEY
from tenants.store import StoreUnavailable, Trouble
from tests.builders_tenants import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "redis"])
async def membership(request: pytest.FixtureRequest, clock: FakeClock, redis: Redis) -> Membership:
    if request.param == "memory":
        return MemoryMembership(clock)
    await redis.set(EPOCH_KEY, "first")
    return RedisMembership(redis, clock)


class TestMembership:
    async def test_counts_those_that_were_heard_lately(
        self, membership: Membership, clock: FakeClock
    ) -> None:
        assert await membership.beat("g1") == Beat(1, "first")
        assert await membership.beat("g2") == Beat(2, "first")
        clock.advance(GATEWAY_TTL_S - 1)
        assert await membership.beat("g1") == Beat(2, "first")
        clock.advance(1)
        assert await membership.beat("g1") == Beat(1, "first")

    async def test_knows_who_has_not_told_what_runs(self, membership: Membership, clock: FakeClock) -> None:
        assert [await membership.num_missing(number) for number in (0, 1, 2)] == [0, 1, 2]
        for name in ("g1", "g2"):
            await membership.beat(name)
        assert [await membership.num_missing(number) for number in (0, 2, 3)] == [2, 2, 3]
        await membership.reopened("g1")
        await membership.reopened("g1")
        assert [await membership.num_missing(number) for number in (0, 2, 3)] == [1, 1, 2]
        await membership.reopened("g2")
        assert [await membership.num_missing(number) for number in (0, 2, 3)] == [0, 0, 1]
        await membership.leave("g2")
        assert [await membership.num_missing(number) for number in (0, 1, 2)] == [0, 0, 1]

    async def test_one_that_leaves_is_gone_at_once(self, membership: Membership) -> None:
        await membership.beat("g1")
        await membership.beat("g2")
        await membership.leave("g1")
        await membership.leave("never was")
        assert await membership.beat("g2") == Beat(1, "first")


class TestRedisMembership:
    async def test_takes_the_time_from_redis(self, redis: Redis) -> None:
        membership = RedisMembership(redis)
        assert (await membership.beat("g1")).num_gateways == 1
        assert (await membership.beat("g2")).num_gateways == 2

    async def test_sees_that_the_epoch_is_missing(self, redis: Redis) -> None:
        assert await RedisMembership(redis).beat("g1") == Beat(1, None)

    async def test_its_key_ends_with_the_last_gateway(self, redis: Redis) -> None:
        await RedisMembership(redis).beat("g1")
        assert 0 < await redis.pttl(GATEWAYS_KEY) <= GATEWAY_TTL_S * 1000

    async def test_that_one_has_told_what_runs_counts_for_a_while(self, redis: Redis) -> None:
        await RedisMembership(redis).reopened("g1")
        (key,) = await redis.keys("*")
        assert 0 < await redis.pttl(key) <= REOPENED_TTL_S * 1000

    async def test_junk_in_its_place_is_replaced(self, redis: Redis) -> None:
        await redis.set(GATEWAYS_KEY, "junk")
        assert (await RedisMembership(redis).beat("g1")).num_gateways == 1

    async def test_a_forgotten_script_is_told_again(self, redis: Redis) -> None:
        membership = RedisMembership(redis)
        await membership.beat("g1")
        await redis.script_flush()
        assert (await membership.beat("g1")).num_gateways == 1

    async def test_nobody_there_is_unreachable(self) -> None:
        client = connect("unix:///nowhere/redis.sock")
        with pytest.raises(StoreUnavailable) as caught:
            await RedisMembership(client).beat("g1")
        assert caught.value.trouble == "unreachable"
        await client.aclose()


class FakeMembership:
    """Answers as it is told."""

    def __init__(self) -> None:
        self.answer: Beat | Trouble = Beat(1, "first")
        self.num_left = 0
        self.told: list[str] = []

    async def beat(self, gateway_id: str) -> Beat:
        if isinstance(self.answer, str):
            raise StoreUnavailable("away", self.answer)
        return self.answer

    async def reopened(self, gateway_id: str) -> None:
        self.told.append(gateway_id)

    async def num_missing(self, num_gateways: int) -> int:
        raise AssertionError("a watch does not wait")

    async def leave(self, gateway_id: str) -> None:
        self.num_left += 1
        if isinstance(self.answer, str):
            raise StoreUnavailable("away", self.answer)


class Eye:
    """A watch with all that it needs; time passes between its ticks."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.membership = FakeMembership()
        self.breaker = Breaker()
        self.num_reseeds = 0
        self.reseeding: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.num_reopened = 0
        self.reopening_fault: StoreUnavailable | None = None
        self.watch = Watch(self.breaker, self.membership, "g1", clock, self._reopen, self._reseed)

    async def tick(self, answer: Beat | Trouble) -> Trouble | None:
        self.clock.advance(PROBE_EVERY_S)
        self.membership.answer = answer
        await self.watch.tick()
        await asyncio.sleep(0)
        return self.breaker.trouble

    async def _reopen(self) -> None:
        if self.reopening_fault is not None:
            raise self.reopening_fault
        self.num_reopened += 1

    async def _reseed(self) -> None:
        self.num_reseeds += 1
        await asyncio.shield(self.reseeding)


@pytest.fixture
async def eye(clock: FakeClock) -> AsyncIterator[Eye]:
    eye = Eye(clock)
    yield eye
    with suppress(asyncio.InvalidStateError):
        eye.reseeding.set_result(None)
    await eye.watch.close()


class TestWatch:
    @pytest.mark.parametrize("trouble", ["unreachable", "timeout", "refused"])
    async def test_opens_the_breaker_though_nobody_asks_and_closes_it_at_the_first_beat(
        self, eye: Eye, trouble: Trouble
    ) -> None:
        assert await eye.tick(trouble) == trouble
        assert await eye.tick(trouble) == trouble
        assert await eye.tick(Beat(1, "first")) is None

    async def test_a_record_that_is_back_is_asked_within_one_tick(self, eye: Eye) -> None:
        eye.breaker.failed("timeout", eye.clock())
        assert await eye.tick(Beat(1, "first")) is None
        assert PROBE_EVERY_S + MAX_CALL_S <= 5

    async def test_an_empty_record_is_written_anew_once_and_not_asked_meanwhile(self, eye: Eye) -> None:
        for _ in range(3):
            assert await eye.tick(Beat(1, None)) == "empty"
        assert eye.num_reseeds == 1
        assert await eye.tick(Beat(1, "first")) is None

    async def test_one_that_is_still_empty_is_written_again(self, eye: Eye) -> None:
        await eye.tick(Beat(1, None))
        eye.reseeding.set_exception(StoreUnavailable("away again"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await eye.tick(Beat(1, None))
        assert eye.num_reseeds == 2

    async def test_what_runs_is_reserved_again_before_an_empty_record_hears_that_it_is_and_is_written_anew(
        self, eye: Eye
    ) -> None:
        eye.reopening_fault = StoreUnavailable("slow", "timeout")
        assert await eye.tick(Beat(1, None)) == "timeout"
        assert (eye.membership.told, eye.num_reseeds) == ([], 0)
        eye.reopening_fault = None
        for number in (1, 2):  # at each tick: something may have been let in just now
            assert await eye.tick(Beat(1, None)) == "empty"
            assert (eye.num_reopened, eye.membership.told, eye.num_reseeds) == (number, ["g1"] * number, 1)

    async def test_a_life_that_is_met_whole_hears_of_what_runs_before_it_decides(self, eye: Eye) -> None:
        await eye.tick(Beat(1, "first"))
        await eye.tick(Beat(1, "first"))
        assert eye.num_reopened == 1
        eye.reopening_fault = StoreUnavailable("slow", "timeout")
        assert await eye.tick(Beat(1, "second")) == "timeout"
        eye.reopening_fault = None
        assert await eye.tick(Beat(1, "second")) is None
        assert await eye.tick(Beat(1, "second")) is None
        assert (eye.num_reopened, eye.membership.told) == (2, [])

    async def test_keeps_the_number_of_gateways_through_an_outage(self, eye: Eye) -> None:
        await eye.tick(Beat(4, "first"))
        await eye.tick("timeout")
        assert eye.watch.num_gateways == 4

    async def test_an_empty_record_does_not_know_the_number(self, eye: Eye) -> None:
        await eye.tick(Beat(4, "first"))
        await eye.tick(Beat(1, None))
        assert eye.watch.num_gateways == 4

    async def test_right_after_an_outage_the_others_may_not_have_beaten_yet(self, eye: Eye) -> None:
        await eye.tick(Beat(4, "first"))
        await eye.tick("timeout")
        await eye.tick(Beat(1, "first"))
        assert eye.watch.num_gateways == 4
        for _ in range(round(GATEWAY_TTL_S / PROBE_EVERY_S)):
            await eye.tick(Beat(2, "first"))
        assert eye.watch.num_gateways == 2

    async def test_leaves_at_its_end_whether_or_not_it_is_heard(self, eye: Eye) -> None:
        eye.membership.answer = "unreachable"
        await eye.watch.close()
        assert eye.membership.num_left == 1
