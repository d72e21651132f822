"""Days and months in UTC, in Python and in the scripts."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from redis.asyncio import Redis

from tenants.ledger.windows import (
    DAY_US,
    day_ends_us,
    day_name,
    day_of,
    days_between,
    month_ends_us,
    month_of,
    to_us,
)
from tenants.redis_script import Script

ALL_DAYS = range(0, 60_000)
"""To 2134, with 2100, which is no leap year."""


def us(*when: int) -> int:
    return to_us(datetime(*when, tzinfo=UTC).timestamp())


def test_a_day_ends_at_midnight_utc() -> None:
    last = us(2024, 2, 29, 23, 59, 59) + 999_999
    assert day_name(day_of(last)) == "2024-02-29"
    assert day_name(day_of(last + 1)) == "2024-03-01"
    assert day_ends_us(day_of(last)) == last + 1


@pytest.mark.parametrize(("year", "month", "ends"), [(2025, 11, (2025, 12, 1)), (2025, 12, (2026, 1, 1))])
def test_a_month_ends_when_the_next_begins(year: int, month: int, ends: tuple[int, int, int]) -> None:
    number = month_of(day_of(us(year, month, 15)))
    assert month_ends_us(number) == us(*ends)
    assert month_of(day_of(us(*ends) - 1)) == number
    assert month_of(day_of(us(*ends))) == number + 1


def test_days_between_are_both_included() -> None:
    assert [day_name(day) for day in days_between("2025-12-31", "2026-01-01")] == ["2025-12-31", "2026-01-01"]
    assert len(days_between("2026-01-01", "2025-12-31")) == 0


async def test_the_scripts_number_months_as_python_does(redis: Redis) -> None:
    common = Script("tenants.ledger", "common", "money").text
    months = "local found = {} for day = 0, 59999 do found[day + 1] = month_of(day) end return found"
    found = await redis.eval(f"{common}\n{months}", 1, "headrace:{acme}:", msgspec.msgpack.encode({}))
    assert found == [month_of(day) for day in ALL_DAYS]


@pytest.mark.parametrize("now", [0, DAY_US - 1, DAY_US, us(2024, 2, 29), us(2099, 12, 31, 23, 59)])
async def test_the_scripts_know_what_day_it_is(redis: Redis, now: int) -> None:
    common = Script("tenants.ledger", "common", "money").text
    found = await redis.eval(
        f"{common}\nreturn {{ today, month_of(today) }}",
        1,
        "headrace:{acme}:",
        msgspec.msgpack.encode({"now": now}),
    )
    assert found == [day_of(now), month_of(day_of(now))]
