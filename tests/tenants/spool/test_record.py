"""All spools as one record: each request once, day by day; and what an empty ledger is rebuilt from."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tenants.ledger.ledger import Applied
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.settlement import Settlement
from tenants.ledger.state import Spend
from tenants.spool.line import encode, name_of
from tenants.spool.rebuild import PAUSES_S, rebuild
from tenants.spool.record import SpoolRecord
from tenants.store import CorruptRecord, StoreUnavailable
from tests.builders_spool import (
    DAY_S,
    NOON,
    Pauses,
    TroubledLedger,
    a_settlement,
    an_adjustment,
    spooled,
    sums,
)


def ids(base: Path, *more: Path) -> list[str]:
    return [one.request_id for one in SpoolRecord(base, *more).settlements()]


async def test_spools_are_merged_by_day_and_by_when_requests_ended(tmp_path: Path) -> None:
    await spooled(tmp_path, "g1", *(a_settlement(number, ended_at=NOON + number) for number in (0, 2, 4)))
    await spooled(tmp_path, "g2", *(a_settlement(number, ended_at=NOON + number) for number in (1, 3)))
    await spooled(tmp_path, "g3", a_settlement(5, ended_at=NOON - 5), at=NOON + DAY_S)
    assert ids(tmp_path) == [f"r{number}" for number in range(6)]


async def test_the_gateway_s_own_line_counts_whichever_came_first(tmp_path: Path) -> None:
    reaped = a_settlement(1, outcome="reaped", completion_tokens=3, gateway_id="dead")
    own = a_settlement(1, completion_tokens=9, gateway_id="dead")
    for place, (first, second) in enumerate([(reaped, own), (own, reaped)]):
        base = tmp_path / str(place)
        await spooled(base, "a", first)
        await spooled(base, "b", second, a_settlement(2))
        found = list(SpoolRecord(base).settlements())
        assert [(one.request_id, one.completion_tokens) for one in found] == [("r1", 9), ("r2", 7)]


async def test_what_was_reaped_twice_counts_once_and_ids_of_tenants_are_their_own(tmp_path: Path) -> None:
    reaped = a_settlement(1, outcome="reaped")
    other = a_settlement(1, tenant_id="other")
    await spooled(tmp_path, "g1", reaped)
    await spooled(tmp_path, "g2", reaped, other)
    found = list(SpoolRecord(tmp_path).settlements())
    assert sorted((one.tenant_id, one.outcome) for one in found) == [
        ("acme", "reaped"),
        ("other", "finished"),
    ]


async def test_adjustments_come_among_the_settlements_and_are_none(tmp_path: Path) -> None:
    await spooled(tmp_path, "g1", a_settlement(1, ended_at=NOON + 1), a_settlement(2, ended_at=NOON + 3))
    await spooled(tmp_path, "g2", an_adjustment(1, at=NOON + 2), a_settlement(3, ended_at=NOON + 4))
    names = [name_of(entry) for entry in SpoolRecord(tmp_path).entries()]
    assert names == ["request r1", "adjustment a1", "request r2", "request r3"]
    assert ids(tmp_path) == ["r1", "r2", "r3"]


async def test_damage_is_told_once_and_a_torn_tail_never(tmp_path: Path) -> None:
    folder = await spooled(tmp_path, "g1", *map(a_settlement, range(3)), a_settlement(9, outcome="reaped"))
    segment = folder / "2026-11-30.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"r1"', b'"rx"') + b'{"crc32":"')
    told: list[str] = []
    found = [one.request_id for one in SpoolRecord(tmp_path, on_corrupt=told.append).settlements()]
    assert found == ["r0", "r2", "r9"]
    assert len(told) == 1


async def test_an_earlier_day_that_ends_in_half_a_line_is_damaged(tmp_path: Path) -> None:
    folder = await spooled(tmp_path, "g1", a_settlement(1), a_settlement(2))
    segment = folder / "2026-11-30.jsonl"
    segment.with_stem("2026-12-01").write_bytes(encode(a_settlement(3)))
    segment.write_bytes(segment.read_bytes()[:-9])
    told: list[str] = []
    found = [one.request_id for one in SpoolRecord(tmp_path, on_corrupt=told.append).settlements()]
    assert found == ["r1", "r3"]
    assert len(told) == 1


async def test_several_machines_make_one_record(tmp_path: Path) -> None:
    await spooled(tmp_path / "a", "g1", a_settlement(1, ended_at=NOON + 1))
    await spooled(tmp_path / "b", "g2", a_settlement(2, ended_at=NOON))
    assert ids(tmp_path / "a", tmp_path / "b") == ["r2", "r1"]
    assert ids(tmp_path / "none") == []


async def test_memory_does_not_grow_with_the_record(tmp_path: Path) -> None:
    folder = await spooled(tmp_path, "g1", a_settlement(0))
    peaks = []
    for count in (500, 4_000):
        (folder / "2026-11-30.jsonl").write_bytes(b"".join(encode(a_settlement(one)) for one in range(count)))
        tracemalloc.start()
        assert sum(1 for _ in SpoolRecord(tmp_path).settlements()) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


SETTLEMENTS = st.builds(
    a_settlement,
    number=st.integers(0, 20),
    started_at=st.just(NOON - 1),
    outcome=st.sampled_from(["finished", "left", "failed", "reaped"]),
    gateway_id=st.just("dead"),
)


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(SETTLEMENTS, max_size=8, unique_by=lambda one: (one.request_id, one.outcome == "reaped"))
    )
)
async def test_however_lines_are_spread_each_request_counts_once(
    tmp_path_factory: pytest.TempPathFactory, written: list[list[Settlement]]
) -> None:
    base, own = tmp_path_factory.mktemp("spools"), set()
    for number, settlements in enumerate(written):
        kept = [one for one in settlements if one.outcome == "reaped" or one.request_id not in own]
        own |= {one.request_id for one in kept if one.outcome != "reaped"}
        folder = base / f"g{number}"
        folder.mkdir()
        (folder / "2026-11-30.jsonl").write_bytes(b"".join(map(encode, kept)))
    found = list(SpoolRecord(base).settlements())
    everybody = {one.request_id for settlements in written for one in settlements}
    assert sorted(one.request_id for one in found) == sorted(everybody)
    assert {one.request_id for one in found if one.outcome != "reaped"} == own


def of_the_month(number: int) -> Settlement:
    return a_settlement(number, started_at=NOON - 20 * DAY_S)


class UnheardLedger(TroubledLedger):
    """Settles, and its answers to these calls, counted from 1, are not heard."""

    def __init__(self, calls: set[int]) -> None:
        super().__init__()
        self._unheard = calls
        self.num_calls = 0

    async def settle(self, settlements: Sequence[Settlement]) -> list[Applied]:
        self.num_calls += 1
        answers = await super().settle(settlements)
        if self.num_calls in self._unheard:
            raise StoreUnavailable
        return answers


class TestRebuild:
    async def test_an_empty_ledger_gets_all_of_the_month_whatever_was_applied_before(
        self, tmp_path: Path
    ) -> None:
        begun = [NOON - days * DAY_S for days in range(40)]
        await spooled(tmp_path, "g1", *(a_settlement(one, started_at=at) for one, at in enumerate(begun)))
        await spooled(tmp_path, "g2", a_settlement(3, started_at=begun[3], outcome="reaped", cost=1000))
        ledger = TroubledLedger()
        assert await rebuild(tmp_path, ledger, NOON) == 30
        assert set(ledger.told) == {f"r{number}" for number in range(30)}
        assert (await sums(ledger, day="2026-11-27")).cost == 3

    async def test_a_batch_that_fails_is_tried_again_and_charges_nothing_twice(self, tmp_path: Path) -> None:
        await spooled(tmp_path, "g1", *map(of_the_month, range(600)))
        ledger, pauses = UnheardLedger({2, 4, 5}), Pauses()
        assert await rebuild(tmp_path, ledger, NOON, pauses) == 600
        assert pauses.seconds == [*PAUSES_S[:1], *PAUSES_S[:2]]
        assert ledger.num_calls == 3 + 3
        assert (await sums(ledger, day="2026-11-10")).requests == 600

    async def test_who_begins_again_after_one_that_was_given_up_charges_nothing_twice(
        self, tmp_path: Path
    ) -> None:
        await spooled(tmp_path, "g1", *map(of_the_month, range(600)))
        ledger, pauses = UnheardLedger(set(range(2, 3 + len(PAUSES_S)))), Pauses()
        with pytest.raises(StoreUnavailable):
            await rebuild(tmp_path, ledger, NOON, pauses)
        assert pauses.seconds == list(PAUSES_S)
        assert await rebuild(tmp_path, ledger, NOON, pauses) == 600
        assert (await sums(ledger, day="2026-11-10")).requests == 600

    async def test_a_tenant_whose_books_are_damaged_holds_nobody_else_up(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Damaged(TroubledLedger):
            async def settle(self, settlements: Sequence[Settlement]) -> list[Applied]:
                if any(one.tenant_id == "bad" for one in settlements):
                    raise CorruptRecord("money of bad")
                return await super().settle(settlements)

        tenants = ("acme", "bad", "acme")
        await spooled(
            tmp_path, "g1", *(a_settlement(number, tenant_id=name) for number, name in enumerate(tenants))
        )
        ledger, pauses = Damaged(), Pauses()
        assert await rebuild(tmp_path, ledger, NOON, pauses) == 2
        assert (ledger.told, pauses.seconds) == (["r0", "r2"], [])
        assert "request r1 cannot be settled: money of bad" in caplog.text

    async def test_what_a_budget_still_pays_for_is_as_it_was_whatever_comes_first(
        self, tmp_path: Path, redis: Redis
    ) -> None:
        """Spend of several gateways, top-ups of two of them, a reset, and spend after it."""
        told = [
            [a_settlement(100), a_settlement(204), an_adjustment(1000)],
            [a_settlement(30), an_adjustment(334, action="reset"), a_settlement(7), an_adjustment(5)],
            [an_adjustment(9, at=NOON - DAY_S), an_adjustment(11, at=NOON - 40 * DAY_S)],
        ]
        for number, entries in enumerate(told):
            await spooled(tmp_path, f"g{number}", *entries)
        ledger = RedisLedger(redis, lambda: round(NOON * 10**6))
        for _ in range(2):
            assert await rebuild(tmp_path, ledger, NOON) == 8
            spends = await ledger.spends("acme", None)
            assert spends.day == Spend(spent=341, credit=1005, forgiven=334)
            assert spends.day.available(2000) == 2000 + 1005 - 7

    async def test_adjustments_that_the_ledger_does_not_take_at_first_are_told_again(
        self, tmp_path: Path
    ) -> None:
        await spooled(tmp_path, "g1", an_adjustment(5))
        ledger = TroubledLedger()
        ledger.is_away = True
        pauses = Pauses(lambda count: setattr(ledger, "is_away", count < 2))
        assert await rebuild(tmp_path, ledger, NOON, pauses) == 1
        assert (await ledger.spends("acme", None)).day.credit == 5

    async def test_an_empty_redis_is_rebuilt_beside_a_gateway_that_settles(
        self, tmp_path: Path, redis: Redis
    ) -> None:
        ledger = RedisLedger(redis, lambda: round(NOON * 10**6))
        await spooled(tmp_path, "dead", *(a_settlement(one) for one in range(10)))
        await spooled(tmp_path, "g1", a_settlement(3, outcome="reaped", cost=99), a_settlement(10))
        await ledger.settle([a_settlement(one) for one in (4, 10)])
        assert await rebuild(tmp_path, ledger, NOON) == 11
        assert await rebuild(tmp_path, ledger, NOON) == 11
        assert (await sums(ledger)).cost == sum(range(11))
