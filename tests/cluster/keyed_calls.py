"""Requests with an `Idempotency-Key`, a gateway for them, and a store of outcomes that can be away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from tenants.outcomes.outcome import Found, Kept, Mark, OutcomeStore
from tenants.outcomes.redis_outcomes import RedisOutcomes
from tenants.store import StoreUnavailable
from tests.cluster.fakes import Call, FakeGateway

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
KEY = {"idempotency-key": "order-66"}


@pytest.fixture(params=["memory", "redis"])
async def gateway(request: pytest.FixtureRequest, redis: Redis) -> FakeGateway:
    if request.param == "memory":
        return await FakeGateway().open()
    return await FakeGateway(outcomes=RedisOutcomes(redis)).open()


@pytest.fixture
async def local() -> FakeGateway:
    """Where only the fake clock moves anything."""
    return await FakeGateway().open()


def text_body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "Hi", **fields}).encode()


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def begin(gateway: FakeGateway, body: bytes | None = None, path: str = TEXT, **request: Any) -> Call:
    headers = {**KEY, **request.pop("headers", {})}
    return gateway.begin("POST", path, body=text_body() if body is None else body, headers=headers, **request)


async def ask(gateway: FakeGateway, body: bytes | None = None, path: str = TEXT, **request: Any) -> Call:
    return await begin(gateway, body, path, **request).finished()


def results(gateway: FakeGateway) -> dict[str, float]:
    """How often each thing became of a request with a key."""
    samples = (
        sample
        for metric in gateway.telemetry.registry.collect()
        for sample in metric.samples
        if sample.name == "headrace_keyed_requests_total"
    )
    return {sample.labels["result"]: sample.value for sample in samples if sample.value}


class Flaky:
    """A store that can be away, or keep nobody's lease."""

    def __init__(self, outcomes: OutcomeStore) -> None:
        self._outcomes = outcomes
        self.is_away = False

    async def begin(self, mark: Mark, owner: str) -> Found:
        return await self._there().begin(mark, owner)

    async def renew(self, mark: Mark, owner: str) -> bool:
        return await self._there().renew(mark, owner)

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> Kept | None:
        return await self._there().finish(mark, owner, sealed)

    async def fail(self, mark: Mark, owner: str) -> bool:
        return await self._there().fail(mark, owner)

    def _there(self) -> OutcomeStore:
        if self.is_away:
            raise StoreUnavailable
        return self._outcomes


async def until(condition: Callable[[], bool]) -> None:
    """Redis answers in its own time."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0)
