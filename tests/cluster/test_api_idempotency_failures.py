"""`Idempotency-Key` when something goes wrong: errors, answers too large, a store that is away."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from cluster.api.errors import ApiError
from cluster.api.pace import Timings
from cluster.generation import TextDelta
from tenants.outcomes.memory_outcomes import MemoryOutcomes
from tenants.outcomes.outcome import LEASE_S, MAX_OUTCOME_BYTES, Begun, Found, Mark
from tenants.outcomes.redis_outcomes import RedisOutcomes
from tests.cluster.fakes import FakeGateway, Gate, say, settle
from tests.cluster.keyed_calls import TEXT, Flaky, ask, begin, gateway, local, results, text_body

__all__ = ["gateway", "local"]

HUGE = "x" * (MAX_OUTCOME_BYTES + 1)


class TestAnErrorFreesTheKey:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        "error",
        [
            ApiError(503, "no_capacity", "no"),
            ApiError(429, "rate", "no"),
            ApiError(403, "tenant_disabled", "no"),
            RuntimeError("secret"),
        ],
    )
    @pytest.mark.parametrize("is_started", [False, True])
    async def test_of_any_kind(
        self, gateway: FakeGateway, error: Exception, stream: bool, is_started: bool
    ) -> None:
        if is_started:
            gateway.generator.script = [TextDelta("a"), error]
        else:
            gateway.generator.before = [error]
        body = text_body(stream=stream)
        failed = await ask(gateway, body)
        assert failed.status == 200 if stream and is_started else failed.status >= 400
        assert b"[DONE]" not in failed.body
        gateway.generator.before, gateway.generator.script = [], say("a")
        assert (await ask(gateway, body)).status == 200
        assert results(gateway) == {"freed": 1, "stored": 1}

    async def test_of_the_client_s_too_and_for_another_body(self, gateway: FakeGateway) -> None:
        assert (await ask(gateway, b"{")).status == 400
        assert (await ask(gateway, text_body(model="unknown"))).status == 404
        assert (await ask(gateway)).status == 200

    @pytest.mark.parametrize("stays", [False, True])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_its_deadline_ends_it_whether_or_not_the_client_stays(
        self, local: FakeGateway, stream: bool, stays: bool
    ) -> None:
        local.generator.script = [Gate()]
        body = text_body(stream=stream)
        call = begin(local, body, headers={"x-request-timeout": "5"})
        await settle()
        if not stays:
            call.leave()
        await local.time.advance(5)
        await call.finished()
        if stays:
            assert (call.status, call.error["code"]) == (503, "deadline_exceeded")
        assert local.generator.generations[0].outcomes == ["left"]
        local.generator.script = say("a")
        assert (await ask(local, body)).status == 200


class TestTooLarge:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_first_gets_it_and_a_repeat_hears_so(self, gateway: FakeGateway, stream: bool) -> None:
        gateway.generator.script = say(HUGE[:1000], HUGE)
        body = text_body(stream=stream)
        first = await ask(gateway, body)
        assert first.status == 200
        assert HUGE.encode() in first.body
        again = await ask(gateway, body)
        assert (again.status, again.error["code"]) == (409, "outcome_too_large")
        assert "retry-after" not in again.headers
        assert again.headers["x-should-retry"] == "false"
        assert results(gateway) == {"too_large": 1, "gone": 1}

    async def test_and_so_it_does_of_one_that_the_tenant_has_no_room_for(
        self, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("memory", "redis"):
            monkeypatch.setattr(f"tenants.outcomes.{module}_outcomes.MAX_OUTCOMES", 1)
        await ask(gateway)
        key = {"idempotency-key": "another"}
        assert (await ask(gateway, headers=key)).status == 200
        again = await ask(gateway, headers=key)
        assert (again.status, again.error["code"]) == (409, "outcome_not_kept")
        assert "retry-after" not in again.headers
        assert again.headers["x-should-retry"] == "false"
        assert results(gateway) == {"stored": 1, "no_room": 1, "gone": 1}

    async def test_the_bound_is_exact(self, local: FakeGateway) -> None:
        local.generator.script = say("")
        empty = await ask(local, headers={"idempotency-key": "empty"})
        room = MAX_OUTCOME_BYTES - len(empty.body)
        for size, status in ((room, 200), (room + 1, 409)):
            local.generator.script = say("x" * size)
            key = {"idempotency-key": f"{size}"}
            assert len((await ask(local, headers=key)).body) == MAX_OUTCOME_BYTES + size - room
            assert (await ask(local, headers=key)).status == status

    async def test_what_nobody_can_get_is_not_made_on(self, local: FakeGateway) -> None:
        gate = Gate()
        local.generator.script = [gate, TextDelta(HUGE), Gate()]
        body = text_body(stream=True)
        call = begin(local, body)
        await settle()
        call.leave()
        await call.finished()
        gate.open()
        await settle()
        assert local.generator.generations[0].outcomes == ["left"]
        assert (await ask(local, body)).error["code"] == "outcome_too_large"

    async def test_it_is_made_no_faster_than_its_client_reads(self) -> None:
        gateway = await FakeGateway(timings=Timings(max_unsent_bytes=1000)).open()
        gateway.generator.script = say(*(HUGE[:50_000] for _ in range(100)))
        call = begin(gateway, text_body(stream=True), reads=False)
        await settle()
        assert gateway.generator.generations[0].usage.completion_tokens < 15
        call.read_on()
        assert len((await call.finished()).body) > 5_000_000


class TestTheStoreIsAway:
    async def test_a_request_with_a_key_is_refused_before_anything_starts(self) -> None:
        store = Flaky(MemoryOutcomes(lambda: 0.0))
        gateway = await FakeGateway(outcomes=store).open()
        store.is_away = True
        call = await ask(gateway)
        assert (call.status, call.error["code"]) == (503, "store_unavailable")
        assert "retry-after" in call.headers
        assert gateway.generator.requests == []
        assert results(gateway) == {"refused": 1}

    async def test_one_without_is_untouched(self) -> None:
        store = Flaky(MemoryOutcomes(lambda: 0.0))
        gateway = await FakeGateway(outcomes=store).open()
        store.is_away = True
        assert (await gateway.post(TEXT, text_body())).status == 200

    @pytest.mark.parametrize("stream", [False, True])
    async def test_lost_after_the_start_the_answer_is_delivered_and_counted(self, stream: bool) -> None:
        gate = Gate()
        store = Flaky(MemoryOutcomes(lambda: 0.0))
        gateway = await FakeGateway(outcomes=store).open()
        gateway.generator.script = [gate, *say("a")]
        call = begin(gateway, text_body(stream=stream))
        await settle()
        store.is_away = True
        gate.open()
        assert (await call.finished()).status == 200
        assert call.is_complete
        assert b"error" not in call.body
        assert results(gateway) == {"unstored": 1}

    async def test_an_error_is_told_though_the_key_cannot_be_freed(self) -> None:
        gate = Gate()
        store = Flaky(MemoryOutcomes(lambda: 0.0))
        gateway = await FakeGateway(outcomes=store).open()
        gateway.generator.script = [gate, ApiError(503, "no_capacity", "no")]
        call = begin(gateway)
        await settle()
        store.is_away = True
        gate.open()
        assert (await call.finished()).error["code"] == "no_capacity"

    async def test_away_for_less_than_a_lease_it_costs_nothing(self, local: FakeGateway) -> None:
        store = Flaky(MemoryOutcomes(local.time))
        gateway = await FakeGateway(outcomes=store, clock=local.time, sleep=local.time.sleep).open()
        gate = Gate()
        gateway.generator.script = [gate, *say("a")]
        call = begin(gateway)
        await local.time.advance(4)
        store.is_away = True
        await local.time.advance(LEASE_S - 3)
        store.is_away = False
        await local.time.advance(3 * LEASE_S)
        gate.open()
        await call.finished()
        assert results(gateway) == {"stored": 1}

    async def test_who_lost_its_lease_overwrites_nothing(self, local: FakeGateway) -> None:
        outcomes = MemoryOutcomes(local.time)
        store = Flaky(outcomes)
        mine, other = [
            await FakeGateway(outcomes=one, clock=local.time, sleep=local.time.sleep).open()
            for one in (store, outcomes)
        ]
        gate = Gate()
        mine.generator.script = [gate, *say("of the one that lost it")]
        call = begin(mine)
        await settle()
        store.is_away = True
        await local.time.advance(LEASE_S)
        store.is_away = False
        other.generator.script = say("of the next one")
        kept = await ask(other)
        assert kept.status == 200
        gate.open()
        assert (await call.finished()).status == 200
        assert (await ask(mine)).body == (await ask(other)).body == kept.body
        assert results(mine) == {"lost": 1, "replayed": 1}

    async def test_a_gateway_that_died_frees_the_key(self, local: FakeGateway) -> None:
        marks: list[Mark] = []

        class Watched(Flaky):
            async def begin(self, mark: Mark, owner: str) -> Found:
                marks.append(mark)
                return await super().begin(mark, owner)

        store = Watched(MemoryOutcomes(local.time))
        gateway = await FakeGateway(outcomes=store).open()
        assert (await ask(gateway, b"{")).status == 400
        assert await store.begin(marks[0], "a gateway that dies") == Begun()
        assert (await ask(gateway, b"{")).status == 409
        await local.time.advance(LEASE_S)
        assert (await ask(gateway)).status == 200

    async def test_what_was_sealed_with_another_secret_is_nobody_s_answer(self, redis: Redis) -> None:
        gateway = await FakeGateway(outcomes=RedisOutcomes(redis)).open()
        await ask(gateway)
        (key,) = await redis.keys("*:outcome:*")
        await redis.hset(key, "sealed", b"\0" * 100)
        call = await ask(gateway)
        assert (call.status, call.error["code"]) == (503, "store_unavailable")
        assert len(gateway.generator.requests) == 1
