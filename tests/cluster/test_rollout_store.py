"""Rollouts through a real Redis, from a gateway to the launcher and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import RedisError
from redis.asyncio import Redis

from cluster.golden import GoldenPrompt
from cluster.rollout.rollout import Order, Rollout
from cluster.rollout.store import MAX_ENDED, SERVING_TTL_S, RedisRollouts, RolloutQueue
from tenants.redis_client import connect
from tenants.store import Conflict, CorruptRecord, NotFound, StoreUnavailable

SECRET = b"a root secret"
GOLDEN = (
    GoldenPrompt(prompt="the prompt", text="the answer"),
    GoldenPrompt(prompt_token_ids=[1], token_ids=[2]),
)


def make_rollout(rollout_id: str = "ro-1", **fields: object) -> Rollout:
    return Rollout(rollout_id, created_at=5.0, model="m", **fields)  # type: ignore[arg-type]


@pytest.fixture
def rollouts(redis: Redis) -> RedisRollouts:
    return RedisRollouts(redis, "c", SECRET)


@pytest.fixture
def queue(redis_url: str) -> Iterator[RolloutQueue]:
    queue = RolloutQueue(redis_url, "c", SECRET)
    yield queue
    queue.close()


async def test_what_is_asked_comes_to_the_launcher_whole(
    rollouts: RedisRollouts, queue: RolloutQueue
) -> None:
    assert queue.asked() is None
    await rollouts.ask(make_rollout(num_golden=2), GOLDEN)
    assert queue.asked() == Order(make_rollout(num_golden=2), GOLDEN)
    assert await rollouts.get("ro-1") == make_rollout(num_golden=2)


async def test_golden_prompts_are_never_in_the_clear_and_gone_once_they_were_taken_up(
    rollouts: RedisRollouts, queue: RolloutQueue, redis: Redis
) -> None:
    await rollouts.ask(make_rollout(num_golden=2), GOLDEN)
    row = await redis.get("headrace:rollout:c")
    assert len(row) > 300
    assert not any(word in row for word in (b"the prompt", b"the answer", b"token_ids"))
    queue.tell(make_rollout(state="checking"))
    assert queue.asked() == Order(make_rollout(state="checking"))
    queue.tell(make_rollout(state="done"))
    (ended,) = await redis.lrange("headrace:rollouts:c", 0, -1)
    assert len(ended) < 300


async def test_an_order_under_another_root_secret_is_told_and_can_be_dropped(
    redis: Redis, queue: RolloutQueue
) -> None:
    await RedisRollouts(redis, "c", b"another").ask(make_rollout(), GOLDEN)
    with pytest.raises(CorruptRecord, match="golden prompts were not sealed with this root secret"):
        queue.asked()
    queue.drop()
    assert queue.asked() is None


async def test_the_model_that_serves_is_known_while_a_launcher_tells_it(
    rollouts: RedisRollouts, queue: RolloutQueue, redis: Redis
) -> None:
    assert await rollouts.serving_model() is None
    queue.tell_serving("/models/ü.gguf")
    assert await rollouts.serving_model() == "/models/ü.gguf"
    assert await RedisRollouts(redis, "d", SECRET).serving_model() is None
    assert 0 < await redis.ttl("headrace:serving:c") <= SERVING_TTL_S


async def test_one_at_a_time(rollouts: RedisRollouts, queue: RolloutQueue) -> None:
    await rollouts.ask(make_rollout(), ())
    with pytest.raises(Conflict, match="rollout ro-1 is not over yet"):
        await rollouts.ask(make_rollout("ro-2"), ())
    queue.tell(make_rollout(state="running"))
    with pytest.raises(Conflict):
        await rollouts.ask(make_rollout("ro-2"), ())
    queue.tell(make_rollout(state="failed", error="broken"))
    assert queue.asked() is None
    await rollouts.ask(make_rollout("ro-2"), ())
    assert [(one.rollout_id, one.state) for one in await rollouts.list_all()] == [
        ("ro-2", "pending"),
        ("ro-1", "failed"),
    ]


async def test_how_far_it_is_can_be_read(rollouts: RedisRollouts, queue: RolloutQueue) -> None:
    await rollouts.ask(make_rollout(), ())
    told = make_rollout(state="running", num_updated=1).with_step(6.0, "starting")
    queue.tell(told)
    assert await rollouts.get("ro-1") == told
    with pytest.raises(NotFound, match="there is no rollout ro-9"):
        await rollouts.get("ro-9")


async def test_the_last_ones_are_remembered_and_all_go_by_themselves(
    rollouts: RedisRollouts, queue: RolloutQueue, redis: Redis
) -> None:
    for number in range(MAX_ENDED + 3):
        await rollouts.ask(make_rollout(f"ro-{number}"), ())
        assert 0 < await redis.ttl("headrace:rollout:c") <= 7 * 86_400
        queue.tell(make_rollout(f"ro-{number}", state="done"))
    kept = [one.rollout_id for one in await rollouts.list_all()]
    assert kept == [f"ro-{number}" for number in range(MAX_ENDED + 2, 2, -1)]
    assert 0 < await redis.ttl("headrace:rollouts:c") <= 7 * 86_400


async def test_another_start_on_the_same_redis_knows_nothing_of_it(
    rollouts: RedisRollouts, redis: Redis, redis_url: str
) -> None:
    await rollouts.ask(make_rollout(), ())
    other = RolloutQueue(redis_url, "d", SECRET)
    assert other.asked() is None
    other.close()
    assert await RedisRollouts(redis, "d", SECRET).list_all() == []


@pytest.mark.parametrize("junk", [b"\x80\x04N.", b'{"x":' + b"[" * 100_000])
async def test_what_is_no_rollout_is_told_to_the_launcher_and_left_out_for_others(
    rollouts: RedisRollouts, queue: RolloutQueue, redis: Redis, junk: bytes
) -> None:
    await redis.set("headrace:rollout:c", junk)
    await redis.rpush("headrace:rollouts:c", junk)
    with pytest.raises(CorruptRecord):
        queue.asked()
    assert await rollouts.list_all() == []
    with pytest.raises(Conflict):
        await rollouts.ask(make_rollout(), ())


async def test_a_key_of_another_type_is_told_to_the_launcher(queue: RolloutQueue, redis: Redis) -> None:
    await redis.rpush("headrace:rollout:c", "x")
    with pytest.raises(CorruptRecord):
        queue.asked()


async def test_without_redis_each_side_hears_it(tmp_path: Path) -> None:
    nobody = f"unix://{tmp_path}/nobody.sock"
    client = connect(nobody)
    with pytest.raises(StoreUnavailable):
        await RedisRollouts(client, "c", SECRET).ask(make_rollout(), ())
    with pytest.raises(StoreUnavailable):
        await RedisRollouts(client, "c", SECRET).list_all()
    assert await RedisRollouts(client, "c", SECRET).serving_model() is None
    await client.aclose()
    queue = RolloutQueue(nobody, "c", SECRET)
    with pytest.raises(RedisError):
        queue.asked()
    queue.close()
