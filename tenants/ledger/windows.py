"""Days and months in UTC, as the windows of budgets number them. Times are µs since the epoch."""

from __future__ import annotations

from datetime import UTC, date, datetime

DAY_US = 86_400 * 10**6
_EPOCH = date(1970, 1, 1).toordinal()


def day_of(now_us: int) -> int:
    """Days since 1970-01-01."""
    return now_us // DAY_US


def month_of(day: int) -> int:
    """Months since the beginning of year 0."""
    found = date.fromordinal(_EPOCH + day)
    return found.year * 12 + found.month - 1


def day_name(day: int) -> str:
    """`2026-11-30`."""
    return date.fromordinal(_EPOCH + day).isoformat()


def days_between(first_day: str, last_day: str) -> range:
    """Both included. Raises ValueError for what is no date."""
    first, last = (date.fromisoformat(name).toordinal() - _EPOCH for name in (first_day, last_day))
    return range(first, last + 1)


def day_ends_us(day: int) -> int:
    return (day + 1) * DAY_US


def month_ends_us(month: int) -> int:
    year, number = divmod(month + 1, 12)
    return int(datetime(year, number + 1, 1, tzinfo=UTC).timestamp()) * 10**6


def to_us(seconds: float) -> int:
    """Unix seconds in µs."""
    return round(seconds * 10**6)
