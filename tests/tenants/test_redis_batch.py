"""Questions of one turn share a pipeline, and nothing else: each has its own answers, time and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError

from tenants.redis_batch import MAX_QUESTIONS, RedisBatch
from tenants.redis_client import connect
from tenants.store import StoreUnavailable


class Road:
    """What pipelines were sent, by their number of commands; closed, none of them comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[int] = []
        self._is_open = asyncio.Event()
        self._is_open.set()
        execute = Pipeline.execute

        async def watched(pipeline: Pipeline, **options: Any) -> Any:
            self.sent.append(len(pipeline))
            replies = await execute(pipeline, **options)
            await self._is_open.wait()
            return replies

        monkeypatch.setattr(Pipeline, "execute", watched)

    def close(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    async def travelled(self, num: int = 1) -> None:
        """Until so many pipelines are on their way."""
        async with asyncio.timeout(10):
            while len(self.sent) < num:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)


@pytest.fixture
async def road(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Road:
    await redis.ping()
    return Road(monkeypatch)


@pytest.fixture
def batch(redis: Redis, road: Road) -> RedisBatch:
    return RedisBatch(redis, 10.0)


def echo(*texts: str) -> Callable[[Pipeline], object]:
    return lambda pipeline: [pipeline.echo(text) for text in texts]


def said(*texts: str) -> list[object]:
    return [text.encode() for text in texts]


async def test_those_of_one_turn_are_one_pipeline_and_each_has_its_own_answers(
    batch: RedisBatch, road: Road
) -> None:
    answers = await asyncio.gather(batch.ask(echo("a", "b")), batch.ask(echo()), batch.ask(echo("c")))
    assert answers == [said("a", "b"), [], said("c")]
    assert road.sent == [3]


async def test_those_of_the_next_turn_are_the_next(batch: RedisBatch, road: Road) -> None:
    road.close()
    first = asyncio.create_task(batch.ask(echo("a")))
    await road.travelled()
    second = asyncio.create_task(batch.ask(echo("b")))
    await road.travelled(2)
    road.open()
    assert await asyncio.gather(first, second) == [said("a"), said("b")]
    assert road.sent == [1, 1]


async def test_very_many_are_several(batch: RedisBatch, road: Road) -> None:
    texts = [str(number) for number in range(2 * MAX_QUESTIONS + 1)]
    answers = await asyncio.gather(*(batch.ask(echo(text)) for text in texts))
    assert answers == [said(text) for text in texts]
    assert sorted(road.sent) == [1, MAX_QUESTIONS, MAX_QUESTIONS]


async def test_an_error_is_the_answer_of_whose_command_it_was(batch: RedisBatch) -> None:
    wrong = batch.ask(lambda pipeline: pipeline.execute_command("NO-SUCH-COMMAND"))
    (error,), answers = await asyncio.gather(wrong, batch.ask(echo("a")))
    assert isinstance(error, ResponseError)
    assert answers == said("a")


async def test_who_cannot_say_what_it_wants_fails_alone(batch: RedisBatch, road: Road) -> None:
    def stumble(pipeline: Pipeline) -> None:
        pipeline.echo("half of it")
        raise ValueError("no")

    error, answers = await asyncio.gather(batch.ask(stumble), batch.ask(echo("a")), return_exceptions=True)
    assert isinstance(error, ValueError)
    assert (answers, road.sent) == (said("a"), [1])


async def test_of_one_that_left_before_it_was_sent_nothing_is_sent(batch: RedisBatch, road: Road) -> None:
    leaves, stays = (asyncio.create_task(batch.ask(echo(text))) for text in "ab")
    await asyncio.sleep(0)
    leaves.cancel()
    assert await asyncio.gather(leaves, stays, return_exceptions=True) != [said("a"), said("b")]
    assert (leaves.cancelled(), stays.result(), road.sent) == (True, said("b"), [1])


async def test_one_that_leaves_on_the_way_takes_nobody_along(batch: RedisBatch, road: Road) -> None:
    road.close()
    leaves, stays, late = (asyncio.create_task(batch.ask(echo(text))) for text in "abc")
    await road.travelled()
    leaves.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await late
    assert not stays.done()
    road.open()
    assert await stays == said("b")


async def test_no_server_is_told_to_all(tmp_path: Path) -> None:
    async with connect(f"unix://{tmp_path}/nobody.sock") as client:
        batch = RedisBatch(client)
        errors = await asyncio.gather(*(batch.ask(echo("a")) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in errors] == [StoreUnavailable] * 3
    assert {error.trouble for error in errors if isinstance(error, StoreUnavailable)} == {"unreachable"}


async def test_a_silent_server_holds_nobody_for_longer_than_it_says(mute_url: str) -> None:
    async with connect(mute_url) as client:
        batch = RedisBatch(client, 0.01)
        errors = await asyncio.gather(*(batch.ask(echo("a")) for _ in range(3)), return_exceptions=True)
    assert [error.trouble for error in errors if isinstance(error, StoreUnavailable)] == ["timeout"] * 3


async def test_whoever_is_left_alone_by_all_ends_all_the_same(mute_url: str) -> None:
    before = asyncio.all_tasks()
    async with connect(mute_url) as client:
        asking = asyncio.create_task(RedisBatch(client, 0.01).ask(echo("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (sending,) = asyncio.all_tasks() - before - {asking}
        asking.cancel()
        await asyncio.wait([asking, sending])
    assert (asking.cancelled(), sending.exception()) == (True, None)
