"""What only the reaper in Redis can meet: others beside it, foreign bytes, answers that are not heard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from tenants.ledger.redis_calls import WATCHED_KEY, LedgerScripts
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.settlement import Settlement
from tenants.redis_script import ScriptCall
from tenants.store import CorruptRecord, StoreUnavailable
from tenants.terms import Limits
from tests.tenants.ledger.builders import (
    EACH_TOKEN_ONE,
    FULL,
    PATIENCE_S,
    Clock,
    an_ask,
    progress,
    settled,
)


@pytest.fixture
def ledger(redis: Redis, clock: Clock) -> RedisLedger:
    return RedisLedger(redis, clock, PATIENCE_S)


async def test_one_tenant_s_junk_stops_nobody_else_s_reaping(
    ledger: RedisLedger, redis: Redis, clock: Clock
) -> None:
    asks = [an_ask(f"r{name}", tenant_id=name) for name in "abc"]
    for ask in asks:
        await ledger.reserve(ask)
    await redis.hset("headrace:{b}:open", "rb", b"junk")
    clock.advance(10)
    assert [one.tenant_id for one in await ledger.reap()] == ["a", "c"]
    clock.advance(9)
    with pytest.raises(CorruptRecord, match=r"headrace:\{b\}:open"):
        await ledger.reap()


async def test_two_reapers_tell_each_orphan_once(ledger: RedisLedger, redis: Redis, clock: Clock) -> None:
    asks = [an_ask(f"r{number}", tenant_id=f"t{number % 9}") for number in range(60)]
    for ask in asks:
        await ledger.reserve(ask)
    clock.advance(10)
    other = RedisLedger(redis, clock, PATIENCE_S)
    told = [one for part in await asyncio.gather(ledger.reap(), other.reap()) for one in part]
    assert sorted(one.request_id for one in told) == sorted(ask.request_id for ask in asks)


async def test_a_lease_that_is_renewed_while_the_reaper_looks_is_not_reaped(
    ledger: RedisLedger, redis: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = an_ask("r1", **FULL)
    await ledger.reserve(ask)
    clock.advance(10)
    run, gateway = LedgerScripts.run, RedisLedger(redis, clock, PATIENCE_S)

    async def renew_before_it_settles(scripts: LedgerScripts, calls: Sequence[ScriptCall]) -> list[object]:
        if calls and calls[0].script is scripts._by_name["settle"]:
            monkeypatch.setattr(LedgerScripts, "run", run)
            await gateway.renew([progress(ask, 5)])
        return await run(scripts, calls)

    monkeypatch.setattr(LedgerScripts, "run", renew_before_it_settles)
    assert await ledger.reap() == []
    assert await gateway.settle([settled(ask)]) == ["applied"]


async def test_more_orphans_than_one_go_takes_are_reaped_in_several(
    ledger: RedisLedger, clock: Clock
) -> None:
    for number in range(250):
        await ledger.reserve(an_ask(f"r{number}"))
    clock.advance(10)
    assert [len(await ledger.reap()) for _ in range(4)] == [100, 100, 50, 0]


async def test_a_tenant_that_reserves_while_it_is_looked_at_stays_on_the_list(
    ledger: RedisLedger, redis: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.reserve(an_ask("r1"))
    await ledger.settle([settled(an_ask("r1"))])
    gateway = RedisLedger(redis, clock, PATIENCE_S)
    run = LedgerScripts.run

    async def reserve_behind_the_look(scripts: LedgerScripts, calls: Sequence[ScriptCall]) -> list[object]:
        answers = await run(scripts, calls)
        if calls and calls[0].script is scripts._by_name["ended"]:
            monkeypatch.setattr(LedgerScripts, "run", run)
            await gateway.reserve(an_ask("r2"))
        return answers

    monkeypatch.setattr(LedgerScripts, "run", reserve_behind_the_look)
    assert await ledger.reap() == []
    clock.advance(10)
    assert [one.request_id for one in await ledger.reap()] == ["r2"]


async def test_a_tenant_without_leases_is_no_longer_looked_at(
    ledger: RedisLedger, redis: Redis, clock: Clock
) -> None:
    asks = [an_ask("r1", tenant_id="a"), an_ask("r2", tenant_id="b")]
    for ask in asks:
        await ledger.reserve(ask)
    await ledger.settle([settled(asks[0])])
    await ledger.reap()
    assert await redis.zrange(WATCHED_KEY, 0, -1) == [b"b"]
    for _ in range(2):  # the second look finds nothing any more
        clock.advance(10)
        await ledger.reap()
    assert not await redis.exists(WATCHED_KEY)


async def test_a_purse_that_is_held_long_hides_no_orphan(ledger: RedisLedger, clock: Clock) -> None:
    purse = an_ask("purse", is_purse=True)
    await ledger.reserve(purse)
    await ledger.renew([progress(purse)])
    await ledger.reap()
    await ledger.reserve(an_ask("r1"))
    clock.advance(10)
    assert [one.request_id for one in await ledger.reap()] == ["r1"]


async def test_who_reaps_and_dies_leaves_its_tenants_to_the_next(
    ledger: RedisLedger, redis: Redis, clock: Clock
) -> None:
    asks = [an_ask(f"r{number}", tenant_id=f"t{number}") for number in range(3)]
    for ask in asks:
        await ledger.reserve(ask)
    clock.advance(10)
    dying = LedgerScripts(redis, clock, PATIENCE_S)
    await dying.run([dying.watched(1000)])
    clock.advance(10)
    assert sorted(one.request_id for one in await ledger.reap()) == ["r0", "r1", "r2"]


@pytest.mark.parametrize("rights", ["-hset", "-evalsha"])
@pytest.mark.parametrize("is_alive", [True, False])
async def test_an_orphan_whose_settlement_is_refused_is_settled_later(
    lone: Redis, rights: str, is_alive: bool
) -> None:
    """At once by the same reaper, within a lease by another if that died."""
    clock = Clock()
    ledger = RedisLedger(lone, clock, PATIENCE_S)
    ask = an_ask("r1", Limits(budget_day=100), prices=EACH_TOKEN_ONE)
    await ledger.reserve(ask)
    clock.advance(10)
    await lone.execute_command("ACL", "SETUSER", "default", rights)
    try:
        with pytest.raises(StoreUnavailable):
            await ledger.reap()
    finally:
        await lone.execute_command("ACL", "SETUSER", "default", f"+{rights[1:]}")
    if not is_alive:
        clock.advance(10)
        ledger = RedisLedger(lone, clock, PATIENCE_S)
    assert [one.request_id for one in await ledger.reap()] == ["r1"]
    (gauge,) = (await ledger.standing("acme", "tiny", ask.scopes)).gauges
    assert gauge.remaining == 100


@pytest.mark.parametrize("cut", ["watched", "ended", "settle", "looked"])
async def test_answers_that_are_not_heard_lose_no_orphan(
    ledger: RedisLedger, redis: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """Redis does what it is asked and the connection breaks."""
    asks = [an_ask(f"r{number}", tenant_id=f"t{number}") for number in range(3)]
    for ask in asks:
        await ledger.reserve(ask)
    clock.advance(5)
    await ledger.reserve(an_ask("young", tenant_id="t1"))
    clock.advance(5)
    run = LedgerScripts.run
    is_cut = False

    async def break_off(scripts: LedgerScripts, calls: Sequence[ScriptCall]) -> list[object]:
        nonlocal is_cut
        answers = await run(scripts, calls)
        names = [name for name, script in scripts._by_name.items() if calls and calls[0].script is script]
        if calls and not is_cut and (names or ["looked"]) == [cut]:
            is_cut = True
            raise StoreUnavailable("cut off")
        return answers

    monkeypatch.setattr(LedgerScripts, "run", break_off)
    told: list[Settlement] = []
    for _ in range(3):
        try:
            told += await ledger.reap()
        except StoreUnavailable:
            clock.advance(9.5)
            await ledger.renew([progress(an_ask("young", tenant_id="t1"))])
    assert is_cut
    assert sorted(one.request_id for one in told) == ["r0", "r1", "r2"]
