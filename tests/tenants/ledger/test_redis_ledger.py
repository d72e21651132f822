"""What only the ledger in Redis can meet: its time, foreign bytes, forgotten scripts, a server in trouble."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from typing import Any

import pytest
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from tenants.ledger.ask import MAX_EXACT, Ask
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.redis_calls import WATCHED_KEY, prefix_of
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.reservation import Held
from tenants.redis_client import connect
from tenants.store import CorruptRecord, StoreUnavailable
from tenants.terms import MAX_BUDGET, MAX_PER_MIN, Limits, Prices
from tests.tenants.ledger.builders import (
    EACH_TOKEN_ONE,
    EVERYTHING,
    FULL,
    NOON_US,
    PATIENCE_S,
    Clock,
    a_top_up,
    an_ask,
    progress,
    settled,
)

RATE_FIELDS = ("requests_per_min", "input_tokens_per_min", "output_tokens_per_min")


@pytest.fixture
def ledger(redis: Redis, clock: Clock) -> RedisLedger:
    return RedisLedger(redis, clock, PATIENCE_S)


async def fill(ledger: RedisLedger, clock: Clock) -> list[Ask]:
    """Every kind of key: one request is open, one settled, one reaped."""
    asks = [an_ask(f"r{number}", **FULL) for number in range(3)]
    for ask in asks[:2]:
        await ledger.reserve(ask)
    await ledger.settle([settled(asks[0])])
    await ledger.renew([progress(asks[1], 3)])
    clock.advance(10)
    await ledger.reap()
    await ledger.reserve(asks[2])
    await ledger.adjust([a_top_up(5)])
    return asks


async def contents(redis: Redis) -> dict[bytes, bytes]:
    """But for the list of the watched, on which a tenant may be for nothing."""
    return {key: await redis.dump(key) for key in sorted(await redis.keys("headrace:{acme}:*"))}


# how it asks


async def test_time_is_redis_own_unless_a_clock_is_given(redis: Redis) -> None:
    ledger = RedisLedger(redis, timeout_s=PATIENCE_S)
    limits = Limits(requests_per_min=1)
    assert isinstance(await ledger.reserve(an_ask("r1", limits)), Granted)
    refused = await ledger.reserve(an_ask("r2", limits))
    assert isinstance(refused, Refused)
    assert 0 < refused.retry_after_s <= 60
    seconds, micros = await redis.time()
    ((_, ends),) = await redis.zrange(f"{prefix_of('acme')}leases:", 0, -1, withscores=True)
    assert ends <= seconds * 10**6 + micros + 10**7 < ends + 60 * 10**6


async def test_a_decision_is_one_round_trip_and_one_script(ledger: RedisLedger, redis: Redis) -> None:
    await ledger.load()
    pipelines: list[int] = []

    async def counted(pipeline: Any, *args: Any, **options: Any) -> Any:
        pipelines.append(len(pipeline.command_stack))
        return await execute(pipeline, *args, **options)

    async with redis.pipeline(transaction=False) as pipeline:
        execute = type(pipeline).execute
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(pipeline), "execute", counted)
        await ledger.reserve(an_ask(**FULL))
    assert pipelines == [2]  # the take, and the tenant's place on the reaper's list


async def test_a_reserve_rides_in_another_s_pipeline(ledger: RedisLedger, redis: Redis) -> None:
    async def ask(request_id: str) -> list[object]:
        async with redis.pipeline(transaction=False) as pipeline:
            pipeline.set("k", "v", ex=100)
            ledger.queue_reserve(pipeline, an_ask(request_id, **FULL))
            ledger.queue_watch(pipeline, "acme")
            pipeline.get("k")
            return await pipeline.execute(raise_on_error=False)

    await redis.script_flush()
    _, reply, _, value = await ask("r1")
    assert value == b"v"
    with pytest.raises(StoreUnavailable) as caught:
        ledger.read_reserve(an_ask(**FULL), reply)
    assert caught.value.trouble == "refused"
    (loading,) = asyncio.all_tasks() - {asyncio.current_task()}
    await loading
    _, reply, watched, value = await ask("r2")
    answer = ledger.read_reserve(an_ask("r2", **FULL), reply)
    assert isinstance(answer, Granted)
    assert (watched, value, answer.reserved_cost) == (1, b"v", 30)
    assert await redis.zrange(WATCHED_KEY, 0, -1) == [b"acme"]


async def test_forgotten_scripts_are_told_again_and_nothing_is_done_twice(
    ledger: RedisLedger, redis: Redis, clock: Clock
) -> None:
    limits = Limits(requests_per_min=10)
    asks = [an_ask(f"r{number}", limits) for number in range(3)]
    await redis.script_flush()
    await ledger.reserve(asks[0])
    await redis.script_flush()
    await ledger.renew([progress(asks[0])])
    await redis.script_flush()
    assert await ledger.settle([settled(asks[0]), settled(asks[1])]) == ["applied", "applied"]
    await ledger.reserve(asks[2])
    await redis.script_flush()
    clock.advance(10)
    assert len(await ledger.reap()) == 1
    await redis.script_flush()
    (gauge,) = (await ledger.standing("acme", "tiny", asks[0].scopes)).gauges
    assert gauge.remaining == 9  # one of the three takes is left: 10 s have drained another


async def test_only_what_was_not_run_is_run_again(ledger: RedisLedger, redis: Redis) -> None:
    """Redis knows `reserve` and not `watch`: the take is not repeated."""
    await redis.script_flush()
    await redis.script_load(ledger._scripts._by_name["reserve"].text)
    answer = await ledger.reserve(an_ask("r1", Limits(requests_per_min=10)))
    assert isinstance(answer, Granted)
    (gauge,) = (await ledger.standing("acme", "tiny", an_ask("r", Limits(requests_per_min=10)).scopes)).gauges
    assert gauge.remaining == 9
    assert await redis.zrange(WATCHED_KEY, 0, -1) == [b"acme"]


# what it keeps


async def test_every_key_has_a_time_to_live_and_its_tenant_s_tag(
    ledger: RedisLedger, redis: Redis, clock: Clock
) -> None:
    await fill(ledger, clock)
    await ledger.reserve(an_ask("purse", prices=EACH_TOKEN_ONE, is_purse=True))
    names = sorted(await redis.keys("*"))
    assert [name.decode() for name in names] == [
        "headrace:{acme}:account",
        "headrace:{acme}:leases:",
        "headrace:{acme}:leases:key_1",
        "headrace:{acme}:open",
        "headrace:{acme}:purses",
        f"headrace:{{acme}}:settled:{NOON_US // 10**6 // 3600}",
        "headrace:{acme}:usage:2025-11-30",
        WATCHED_KEY,
    ]
    day = 86_400
    for name in names:
        assert await redis.ttl(name) in range(3600, 401 * day), name
    assert await redis.ttl("headrace:{acme}:usage:2025-11-30") > 399 * day
    assert await redis.ttl(names[5]) > 48 * 3600


async def test_a_key_that_lost_its_time_to_live_is_repaired_by_its_next_use(
    ledger: RedisLedger, redis: Redis, clock: Clock
) -> None:
    asks = await fill(ledger, clock)
    for name in await redis.keys("*"):
        await redis.persist(name)
    await ledger.settle([settled(asks[2])])
    await ledger.reserve(an_ask("r9", **FULL))
    assert [name for name in await redis.keys("*") if await redis.ttl(name) < 0] == []


async def test_nothing_of_a_settled_request_stays_open(ledger: RedisLedger, redis: Redis) -> None:
    for ask in (an_ask("r1", **FULL), an_ask("late", **FULL), an_ask("purse", is_purse=True)):
        if ask.request_id == "late":
            await ledger.settle([settled(ask, "unserved")])
        await ledger.reserve(ask)
        await ledger.settle([settled(ask, "unserved")])
    for place in ("open", "leases:", "leases:key_1", "purses"):
        assert not await redis.exists(f"headrace:{{acme}}:{place}"), place


async def test_what_says_nothing_any_more_is_forgotten_at_the_first_request_of_a_day(
    ledger: RedisLedger, redis: Redis, clock: Clock
) -> None:
    """Money of a month that has ended, and rates that have drained."""
    slow = Limits(output_tokens_per_min=1, burst_s=3600, requests_per_min=1)
    gone = an_ask("r1", EVERYTHING, key_id="gone", key_limits=EVERYTHING)
    in_debt = an_ask("r2", EVERYTHING, key_id="in_debt", key_limits=slow, max_tokens=10_000)
    for ask in (gone, in_debt):
        await ledger.reserve(ask)
        await ledger.settle([settled(ask)])
    clock.advance(12 * 3600)  # into December
    await ledger.reserve(an_ask("r3"))
    fields = {field.decode() for field in await redis.hkeys("headrace:{acme}:account")}
    assert fields == {"money:", "money:key_1", "output:tiny", "rates:in_debt:tiny"}


async def test_money_that_nobody_can_count_exactly_stays_at_the_most(ledger: RedisLedger) -> None:
    for number in range(5):
        await ledger.settle([settled(an_ask(f"r{number}"), cost=MAX_EXACT - 1)])
    (gauge,) = (await ledger.standing("acme", "tiny", an_ask("r", Limits(budget_month=1000)).scopes)).gauges
    assert gauge.remaining == 0


async def test_an_account_of_the_largest_numbers_is_kept_compact(ledger: RedisLedger, redis: Redis) -> None:
    """Redis stores a small hash as one piece while no value is longer than 64 bytes."""
    limits = Limits(**dict.fromkeys(RATE_FIELDS, MAX_PER_MIN), burst_s=3600, budget_month=MAX_BUDGET)
    ask = an_ask("r1", limits, prices=Prices(output=10**9), max_tokens=9_007_199)
    await ledger.reserve(ask)
    await ledger.settle([settled(ask)])
    values = await redis.hvals("headrace:{acme}:account")
    assert max(map(len, values)) <= 64


async def test_the_largest_terms_are_counted_exactly(ledger: RedisLedger, clock: Clock) -> None:
    prices = Prices(input=1, output=10**9)
    limits = Limits(
        requests_per_min=MAX_PER_MIN,
        input_tokens_per_min=MAX_PER_MIN,
        output_tokens_per_min=MAX_PER_MIN,
        burst_s=3600,
        budget_day=MAX_BUDGET,
    )
    ask = an_ask("r1", limits, prices=prices, prompt_tokens=1, max_tokens=9_007_199)
    answer = await ledger.reserve(ask)
    assert isinstance(answer, Granted)
    left = {gauge.kind: gauge.remaining for gauge in answer.standing.gauges}
    assert left == {
        "requests": 10**8 - 1,
        "input_tokens": 10**8 - 1,
        "output_tokens": 10**8 - 256,
        "budget_day": MAX_BUDGET - 9_007_199_001,
    }
    clock.now_us += 7
    await ledger.settle([settled(ask, completion_tokens=9_007_199)])
    gauges = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    left_units = 9_007_199 * 60 * 10**6 - 7 * MAX_PER_MIN
    assert gauges[2].reset_s == -(-left_units // MAX_PER_MIN) / 10**6
    assert gauges[3].remaining == MAX_BUDGET - 9_007_199_001


# what is not ours


FOREIGN = {
    "a pickle": pickle.dumps({"level": 0}),
    "nothing": b"",
    "a number": b"\x07",
    "a string": b"\xa4evil",
    "too short an array": b"\x90",
    "an array of strings": b"\x98" + 8 * b"\xa4evil",
    "deep nesting": b"\x91" * 3000,
}


IN_THE_ACCOUNT = ("rates::tiny", "output:tiny", "money:", "money:key_1")


@pytest.mark.parametrize("place", [*IN_THE_ACCOUNT, "open", "settled", "usage"])
async def test_foreign_bytes_are_told_without_their_content_and_nothing_is_taken(
    ledger: RedisLedger, redis: Redis, clock: Clock, place: str
) -> None:
    asks = await fill(ledger, clock)
    takes = [lambda: ledger.reserve(an_ask("r9", **FULL))]
    settles = [lambda: ledger.settle([settled(asks[2])])]
    calls = {
        **dict.fromkeys(IN_THE_ACCOUNT, takes + settles),
        "open": [*settles, lambda: ledger.renew([progress(asks[2])])],
        "settled": [lambda: ledger.settle([settled(asks[0])])],
        "usage": [*settles, lambda: ledger.usage("acme", "2025-11-30", "2025-11-30")],
    }[place]
    for value in FOREIGN.values():
        await put_everywhere(redis, place, value)
        before = await contents(redis)
        for call in calls:
            with pytest.raises(CorruptRecord) as caught:
                await call()
            assert "headrace:" in str(caught.value)
            assert "evil" not in str(caught.value)
        assert await contents(redis) == before


async def put_everywhere(redis: Redis, place: str, value: bytes) -> None:
    if place in IN_THE_ACCOUNT:
        await redis.hset("headrace:{acme}:account", place, value)
    for name in await redis.keys(f"headrace:{{acme}}:{place}*"):
        if await redis.type(name) == b"hash":
            await redis.hset(name, mapping=dict.fromkeys(await redis.hkeys(name), value))
        else:
            await redis.set(name, value, ex=100)


@pytest.mark.parametrize(
    "place",
    ["account", "open", "leases:", "leases:key_1", "settled", "usage:2025-11-30"],
)
async def test_a_key_of_another_type_is_corrupt_and_nothing_is_taken(
    ledger: RedisLedger, redis: Redis, clock: Clock, place: str
) -> None:
    asks = await fill(ledger, clock)
    (name, *_) = sorted(await redis.keys(f"headrace:{{acme}}:{place}*"))
    await redis.delete(name)
    await redis.rpush(name, "evil")
    before = await contents(redis)
    is_of_settling = place.startswith(("settled", "usage"))
    call = ledger.settle([settled(asks[2])]) if is_of_settling else ledger.reserve(an_ask("r9", **FULL))
    with pytest.raises(CorruptRecord) as caught:
        await call
    assert "evil" not in str(caught.value)
    assert await contents(redis) == before


async def test_an_answer_that_is_none_of_ours_is_corrupt(ledger: RedisLedger) -> None:
    for reply in (b"", b"\x91\x01", b"x", None, 7, [1], pickle.dumps(1)):
        with pytest.raises(CorruptRecord):
            ledger.read_reserve(an_ask(), reply)


async def test_hundreds_of_many_tenants_are_reserved_again_and_one_tenant_s_junk_stops_nobody_else_s(
    ledger: RedisLedger, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.set("headrace:{t3}:open", "junk")
    names = [f"t{number % 7}" for number in range(350)]
    await ledger.reopen([Held(an_ask(f"r{at}", tenant_id=name), 2) for at, name in enumerate(names)])
    reserved = {name: (await ledger.spends(name, None)).day.reserved for name in set(names)}
    assert reserved == {f"t{number}": 0 if number == 3 else 100 for number in range(7)}
    assert "what runs cannot be reserved again" in caplog.text
    assert "junk" not in caplog.text


# a server in trouble


async def all_calls(ledger: RedisLedger) -> dict[str, StoreUnavailable]:
    """What each method raises; whether it may read is its own matter."""
    ask = an_ask("r9", **FULL)
    calls = {
        "reserve": ledger.reserve(ask),
        "settle": ledger.settle([settled(ask)]),
        "renew": ledger.renew([progress(ask)]),
        "reap": ledger.reap(),
        "standing": ledger.standing("acme", "tiny", ask.scopes),
        "adjust": ledger.adjust([a_top_up(1, adjustment_id="a9")]),
        "reopen": ledger.reopen([Held(an_ask("r8", **FULL), 1)]),
        "spends": ledger.spends("acme", None),
        "usage": ledger.usage("acme", "2025-11-30", "2025-11-30"),
    }
    raised = {}
    for name, call in calls.items():
        try:
            await call
        except StoreUnavailable as error:
            raised[name] = error
    return raised


TROUBLES = {
    "out of memory": (
        ["CONFIG SET maxmemory 1"],
        ["CONFIG SET maxmemory 0"],
        {"reserve", "settle", "reopen", "adjust"},
    ),
    "a replica": (
        ["REPLICAOF 127.0.0.1 1"],
        ["REPLICAOF NO ONE"],
        {"reserve", "settle", "reopen", "adjust"},
    ),
    "scripts not allowed": (
        ["ACL SETUSER default -evalsha"],
        ["ACL SETUSER default +evalsha"],
        {"reserve", "settle", "renew", "reap", "standing", "reopen", "spends", "adjust"},
    ),
    "a command not allowed": (
        ["ACL SETUSER default -hset"],
        ["ACL SETUSER default +hset"],
        {"reserve", "settle", "reopen", "adjust"},
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
async def test_a_server_that_refuses_takes_nothing_and_is_well_again_at_once(lone: Redis, name: str) -> None:
    begin, end, failing = TROUBLES[name]
    clock = Clock()
    ledger = RedisLedger(lone, clock, PATIENCE_S)
    await ledger.reserve(an_ask("r1", **FULL))
    before = await ledger.standing("acme", "tiny", an_ask(**FULL).scopes)
    for command in begin:
        await lone.execute_command(*command.split(" ", 3 if "ACL" in command else -1))
    try:
        raised = await all_calls(ledger)
    finally:
        for command in end:
            await lone.execute_command(*command.split(" ", 3 if "ACL" in command else -1))
    assert raised.keys() >= failing
    assert {error.trouble for error in raised.values()} == {"refused"}
    assert not [error for error in raised.values() if isinstance(error, CorruptRecord)]
    assert await ledger.standing("acme", "tiny", an_ask(**FULL).scopes) == before
    assert isinstance(await ledger.reserve(an_ask("r2", **FULL)), Granted)


async def test_a_silent_server_costs_the_time_of_one_call(lone: Redis, lone_server: RedisServer) -> None:
    patient, ledger = RedisLedger(lone, Clock(), PATIENCE_S), RedisLedger(lone, Clock(), 0.01)
    await patient.reserve(an_ask("r1"))
    os.kill(lone_server.pid, signal.SIGSTOP)
    try:
        raised = await all_calls(ledger)
    finally:
        os.kill(lone_server.pid, signal.SIGCONT)
    assert len(raised) == 9
    assert {error.trouble for error in raised.values()} == {"timeout"}
    assert isinstance(await patient.reserve(an_ask("r2")), Granted)


async def test_without_a_server_every_call_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with connect(f"unix://{tmp_path_factory.mktemp('no')}/redis.sock") as client:
        raised = await all_calls(RedisLedger(client))
        assert len(raised) == 9
        assert {error.trouble for error in raised.values()} == {"unreachable"}
