"""`Idempotency-Key`: one generation and one charge, however often a client repeats its request."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from cluster.generation import TextDelta
from tenants.outcomes.memory_outcomes import MemoryOutcomes
from tenants.outcomes.outcome import KEEP_S, LEASE_S, Kept, Mark
from tenants.outcomes.redis_outcomes import RedisOutcomes
from tenants.redis_client import connect
from tests.cluster.fakes import FakeGateway, Gate, say, settle
from tests.cluster.keyed_calls import (
    CHAT,
    KEY,
    TEXT,
    Flaky,
    ask,
    begin,
    chat_body,
    gateway,
    local,
    results,
    text_body,
    until,
)

__all__ = ["gateway", "local"]


class TestReplay:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", [TEXT, CHAT])
    async def test_a_repeat_gets_the_same_bytes_and_starts_nothing(
        self, gateway: FakeGateway, path: str, stream: bool
    ) -> None:
        fields: dict[str, Any] = {"stream": stream, "max_tokens": 1000}
        body = text_body(**fields) if path == TEXT else chat_body(**fields)
        first = await ask(gateway, body, path)
        again = await ask(gateway, body, path)
        assert (first.status, again.status) == (200, 200)
        assert again.body == first.body
        assert first.body.endswith(b"data: [DONE]\n\n" if stream else b"}")
        assert len(gateway.generator.requests) == 1
        assert results(gateway) == {"stored": 1, "replayed": 1}

    @pytest.mark.parametrize("stream", [False, True])
    async def test_headers_that_tell_of_the_answer_are_the_same(
        self, gateway: FakeGateway, stream: bool
    ) -> None:
        body = text_body(stream=stream, max_tokens=1000)
        first = await ask(gateway, body)
        again = await ask(gateway, body)
        assert "x-headrace-max-tokens" in first.headers
        assert "x-headrace-replica" in first.headers
        assert ("x-headrace-cached-tokens" in first.headers) is not stream
        assert "x-headrace-replayed" not in first.headers
        own = {"x-request-id", "content-length", "x-headrace-replayed"}
        assert {name: value for name, value in again.headers.items() if name not in own} == {
            name: value
            for name, value in first.headers.items()
            if name not in own and not name.startswith("x-ratelimit-")
        }
        assert again.headers["x-headrace-replayed"] == "true"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_how_the_tenant_stood_is_not_told_again(
        self, local: FakeGateway, stream: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = {"x-ratelimit-remaining-requests": "59", "x-headrace-soft-limits": "requests"}
        monkeypatch.setattr("cluster.api.serving.limit_headers", lambda standing: told)
        first = await ask(local, text_body(stream=stream))
        again = await ask(local, text_body(stream=stream))
        assert told.items() <= first.headers.items()
        assert not told.keys() & again.headers.keys()

    async def test_two_repeats_are_as_good_as_one(self, gateway: FakeGateway) -> None:
        bodies = {(await ask(gateway)).body for _ in range(3)}
        assert len(bodies) == 1
        assert len(gateway.generator.requests) == 1

    async def test_the_time_limit_is_no_part_of_the_request(self, gateway: FakeGateway) -> None:
        first = await ask(gateway, headers={"x-request-timeout": "5"})
        assert (await ask(gateway, headers={"x-request-timeout": "9"})).body == first.body

    async def test_what_was_answered_is_answered_again_though_nothing_could_be_now(self) -> None:
        max_model_len = 100
        gateway = await FakeGateway(max_model_len=lambda: max_model_len).open()
        first = await ask(gateway)
        max_model_len = 0
        assert (await ask(gateway)).body == first.body
        assert (await ask(gateway, headers={"idempotency-key": "another"})).status == 503

    async def test_for_a_day(self, local: FakeGateway) -> None:
        await ask(local)
        await local.time.advance(KEEP_S - 1)
        await ask(local)
        assert len(local.generator.requests) == 1
        await local.time.advance(1)
        await ask(local)
        assert len(local.generator.requests) == 2

    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_outcome_is_kept_before_its_client_hears_of_the_end(
        self, local: FakeGateway, stream: bool
    ) -> None:
        gate = Gate()

        class Slow(Flaky):
            async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> Kept | None:
                await gate.opened.wait()
                return await super().finish(mark, owner, sealed)

        gateway = await FakeGateway(outcomes=Slow(MemoryOutcomes(local.time))).open()
        call = begin(gateway, text_body(stream=stream))
        await settle()
        assert not call.is_complete
        gate.open()
        assert (await call.finished()).status == 200

    async def test_without_a_key_each_request_is_its_own(self, gateway: FakeGateway) -> None:
        for _ in range(2):
            await gateway.post(TEXT, text_body())
        assert len(gateway.generator.requests) == 2
        assert results(gateway) == {}


class TestTheKey:
    @pytest.mark.parametrize("value", ["", "a b", "a\t", "é", "x" * 256, "a\x7f"])
    async def test_a_bad_one_is_named(self, local: FakeGateway, value: str) -> None:
        call = await ask(local, headers={"idempotency-key": value})
        assert (call.status, call.error["param"]) == (400, "idempotency-key")
        assert local.generator.requests == []

    @pytest.mark.parametrize("value", ["x" * 255, "!", '"quoted"', "~"])
    async def test_any_visible_ascii_is_good(self, local: FakeGateway, value: str) -> None:
        assert (await ask(local, headers={"idempotency-key": value})).status == 200

    async def test_given_twice_it_is_refused(self, local: FakeGateway) -> None:
        call = await ask(local, headers={"Idempotency-Key": "another"})
        assert (call.status, call.error["param"]) == (400, "idempotency-key")

    async def test_another_body_under_it_is_refused_during_and_after(self, gateway: FakeGateway) -> None:
        gate = Gate()
        gateway.generator.script = [gate, *say("a")]
        first = begin(gateway)
        await until(lambda: len(gateway.generator.generations) == 1)
        for _ in range(2):
            call = await ask(gateway, text_body(prompt="Ho"))
            assert (call.status, call.error["code"]) == (422, "idempotency_key_reused")
            assert call.error["param"] == "idempotency-key"
            gate.open()
            await first.finished()
        assert len(gateway.generator.requests) == 1

    async def test_each_route_has_keys_of_its_own(self, gateway: FakeGateway) -> None:
        await ask(gateway)
        assert (await ask(gateway, chat_body(), CHAT)).json()["object"] == "chat.completion"

    async def test_a_tenant_s_key_says_nothing_about_another_s(self, redis: Redis) -> None:
        outcomes = RedisOutcomes(redis)
        acme = await FakeGateway(outcomes=outcomes).open()
        globex = FakeGateway(outcomes=outcomes)
        globex.tenant = msgspec.structs.replace(globex.tenant, tenant_id="globex")
        await globex.open()
        await ask(acme, text_body(stream=True))
        globex.generator.script = say("of globex")
        for body in (text_body(stream=True), text_body(prompt="Ho")):
            call = await ask(globex, body, headers={"idempotency-key": f"{len(body)}"})
            assert call.status == 200
        same = await ask(globex, text_body(stream=True))
        assert b"of globex" in same.body
        assert "x-headrace-replayed" not in same.headers


class TestWhileItRuns:
    async def test_a_repeat_is_told_to_wait_as_long_as_it_has_been_running(self, local: FakeGateway) -> None:
        local.generator.script = [Gate()]
        begin(local, headers={"x-request-timeout": "100"})
        for waited_s, retry_s in ((0, 1), (5, 5), (15, 20), (50, 30)):
            await local.time.advance(waited_s)
            call = await ask(local)
            assert (call.status, call.error["code"]) == (409, "idempotency_in_progress")
            assert call.headers["retry-after"] == str(retry_s)
        assert len(local.generator.requests) == 1
        await local.time.advance(100)

    async def test_of_many_at_once_one_runs(self, gateway: FakeGateway) -> None:
        gate = Gate()
        gateway.generator.before = [gate]
        calls = [begin(gateway) for _ in range(20)]
        await until(lambda: sum(call.task.done() for call in calls) == 19)
        gate.open()
        for call in calls:
            await call.finished()
        assert sorted(call.status for call in calls) == [200, *[409] * 19]
        assert len(gateway.generator.requests) == 1

    async def test_two_gateways_that_are_asked_at_once_run_it_once(
        self, redis: Redis, redis_url: str
    ) -> None:
        async with connect(redis_url) as other:
            gateways = [await FakeGateway(outcomes=RedisOutcomes(one)).open() for one in (redis, other)]
            calls = [begin(gateway) for gateway in gateways for _ in range(5)]
            for call in calls:
                await call.finished()
            assert sum(len(gateway.generator.requests) for gateway in gateways) == 1
            assert {call.status for call in calls} <= {200, 409}

    async def test_its_lease_is_renewed(self, local: FakeGateway) -> None:
        gate = Gate()
        local.generator.script = [gate, *say("a")]
        first = begin(local)
        await local.time.advance(10 * LEASE_S)
        assert (await ask(local)).status == 409
        gate.open()
        await first.finished()
        assert results(local) == {"in_progress": 1, "stored": 1}


class TestTheClientLeaves:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("is_started", [False, True])
    async def test_its_retry_gets_the_outcome(
        self, gateway: FakeGateway, is_started: bool, stream: bool
    ) -> None:
        gate = Gate()
        if is_started:
            gateway.generator.script = [TextDelta("a"), gate, *say("b")]
        else:
            gateway.generator.before, gateway.generator.script = [gate], say("a", "b")
        body = text_body(stream=stream)
        call = begin(gateway, body)
        await until(lambda: len(gateway.generator.requests) == 1)
        await settle()
        call.leave()
        await call.finished()
        assert (await ask(gateway, body)).status == 409
        gate.open()
        await until(lambda: gateway.telemetry.num_in_flight == 0)
        again = await ask(gateway, body)
        assert again.status == 200
        assert (again.events[-1] == "[DONE]") if stream else (again.json()["choices"][0]["text"] == "ab")
        assert len(gateway.generator.requests) == 1
        assert gateway.generator.generations[0].outcomes == ["finished"]

    async def test_a_reply_that_was_lost_on_its_way_is_sent_again(self, gateway: FakeGateway) -> None:
        lost = begin(gateway, reads=False)
        await until(lambda: gateway.telemetry.num_in_flight <= 1 and results(gateway) == {"stored": 1})
        lost.leave()
        lost.read_on()
        await lost.finished()
        assert lost.messages == []
        assert (await ask(gateway)).headers["x-headrace-replayed"] == "true"
        assert len(gateway.generator.requests) == 1

    async def test_one_that_does_not_read_is_given_up_and_the_answer_is_not(self, local: FakeGateway) -> None:
        gate = Gate()
        local.generator.script = [TextDelta("a"), gate, *say("b")]
        body = text_body(stream=True)
        call = begin(local, body, reads=False)
        await local.time.advance(31)
        assert call.task.done()
        gate.open()
        await settle()
        assert (await ask(local, body)).headers["x-headrace-replayed"] == "true"

    async def test_a_drain_waits_for_the_answer(self, local: FakeGateway) -> None:
        gate = Gate()
        local.generator.script = [gate, *say("a")]
        call = begin(local)
        await settle()
        call.leave()
        await call.finished()
        assert local.telemetry.num_in_flight == 1
        gate.open()
        await settle()
        assert local.telemetry.num_in_flight == 0

    async def test_no_task_is_left(self, local: FakeGateway) -> None:
        before = asyncio.all_tasks()
        gate = Gate()
        local.generator.script = [TextDelta("a"), gate, *say("b")]
        call = begin(local, text_body(stream=True))
        await settle()
        call.leave()
        await call.finished()
        gate.open()
        await settle()
        assert asyncio.all_tasks() == before


async def test_redis_sees_neither_key_nor_prompt_nor_text(redis: Redis) -> None:
    gateway = await FakeGateway(outcomes=RedisOutcomes(redis)).open()
    gateway.generator.script = [TextDelta("canary text"), Gate()]
    begin(gateway, text_body(prompt="canary prompt", seed=1), headers={"x-request-timeout": "60"})
    await until(lambda: len(gateway.generator.generations) == 1)
    running = await everything_in(redis)
    gateway.generator.script = say("canary text")
    for number, body in enumerate(
        (text_body(prompt="canary prompt"), text_body(prompt="canary prompt", stream=True))
    ):
        assert (
            b"canary" in (await ask(gateway, body, headers={"idempotency-key": f"canary-key-{number}"})).body
        )
    stored = await everything_in(redis)
    assert (len(running), len(stored)) == (1, 4)  # and what the tenant has stored
    for seen in (running, stored):
        for hidden in (b"canary", KEY["idempotency-key"].encode(), gateway.keys["inference"].encode()):
            assert hidden not in b"".join(name + value for name, value in seen.items())
    await gateway.time.advance(60)


async def everything_in(redis: Redis) -> dict[bytes, bytes]:
    """Each key with all that is under it."""
    fields = {key: await redis.hgetall(key) async for key in redis.scan_iter()}
    return {key: b"".join(name + value for name, value in found.items()) for key, found in fields.items()}
