"""Rollouts through a real Redis, from a gateway to the launcher and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import RedisError
from redis.asyncio import Redis

from cluster.rollout.rollout import Rollout
from cluster.rollout.store import MAX_ENDED, RedisRollouts, RolloutDesk
from tenants.redis_client import connect
from tenants.store import Conflict, CorruptRecord, NotFound, StoreUnavailable


def make_rollout(rollout_id: str = "ro-1", **fields: object) -> Rollout:
    golden: tuple[dict[str, object], ...] = ({"prompt": "x", "token_ids": [1, 2]},)
    return Rollout(rollout_id, created_at=5.0, model="m", golden=golden, **fields)  # type: ignore[arg-type]


@pytest.fixture
def rollouts(redis: Redis) -> RedisRollouts:
    return RedisRollouts(redis, "c")


@pytest.fixture
def desk(redis_url: str) -> Iterator[RolloutDesk]:
    desk = RolloutDesk(redis_url, "c")
    yield desk
    desk.close()


async def test_what_is_asked_comes_to_the_launcher_whole(rollouts: RedisRollouts, desk: RolloutDesk) -> None:
    assert desk.asked() is None
    await rollouts.ask(make_rollout())
    assert desk.asked() == make_rollout()
    assert await rollouts.get("ro-1") == make_rollout()


async def test_one_at_a_time(rollouts: RedisRollouts, desk: RolloutDesk) -> None:
    await rollouts.ask(make_rollout())
    with pytest.raises(Conflict, match="rollout ro-1 is not over yet"):
        await rollouts.ask(make_rollout("ro-2"))
    desk.tell(make_rollout(state="running"))
    with pytest.raises(Conflict):
        await rollouts.ask(make_rollout("ro-2"))
    desk.tell(make_rollout(state="failed", error="broken"))
    assert desk.asked() is None
    await rollouts.ask(make_rollout("ro-2"))
    assert [(one.rollout_id, one.state) for one in await rollouts.list_all()] == [
        ("ro-2", "pending"),
        ("ro-1", "failed"),
    ]


async def test_how_far_it_is_can_be_read(rollouts: RedisRollouts, desk: RolloutDesk) -> None:
    await rollouts.ask(make_rollout())
    told = make_rollout(state="running", num_updated=1).with_step(6.0, "starting")
    desk.tell(told)
    assert await rollouts.get("ro-1") == told
    with pytest.raises(NotFound, match="there is no rollout ro-9"):
        await rollouts.get("ro-9")


async def test_the_last_ones_are_remembered_and_all_go_by_themselves(
    rollouts: RedisRollouts, desk: RolloutDesk, redis: Redis
) -> None:
    for number in range(MAX_ENDED + 3):
        await rollouts.ask(make_rollout(f"ro-{number}"))
        assert 0 < await redis.ttl("headrace:rollout:c") <= 7 * 86_400
        desk.tell(make_rollout(f"ro-{number}", state="done"))
    kept = [one.rollout_id for one in await rollouts.list_all()]
    assert kept == [f"ro-{number}" for number in range(MAX_ENDED + 2, 2, -1)]
    assert 0 < await redis.ttl("headrace:rollouts:c") <= 7 * 86_400


async def test_another_start_on_the_same_redis_knows_nothing_of_it(
    rollouts: RedisRollouts, redis: Redis, redis_url: str
) -> None:
    await rollouts.ask(make_rollout())
    other = RolloutDesk(redis_url, "d")
    assert other.asked() is None
    other.close()
    assert await RedisRollouts(redis, "d").list_all() == []


async def test_what_is_no_rollout_is_told(rollouts: RedisRollouts, desk: RolloutDesk, redis: Redis) -> None:
    await redis.set("headrace:rollout:c", b"\x80\x04N.")
    with pytest.raises(CorruptRecord):
        desk.asked()
    with pytest.raises(CorruptRecord):
        await rollouts.list_all()
    with pytest.raises(CorruptRecord):
        await rollouts.ask(make_rollout())


async def test_without_redis_each_side_hears_it(tmp_path: Path) -> None:
    nobody = f"unix://{tmp_path}/nobody.sock"
    client = connect(nobody)
    with pytest.raises(StoreUnavailable):
        await RedisRollouts(client, "c").ask(make_rollout())
    with pytest.raises(StoreUnavailable):
        await RedisRollouts(client, "c").list_all()
    await client.aclose()
    desk = RolloutDesk(nobody, "c")
    with pytest.raises(RedisError):
        desk.asked()
    desk.close()
