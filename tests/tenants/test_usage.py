"""Usage rows taken together: nothing is lost, nothing counts twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.ledger.usage import DIMENSIONS, Dimension, UsageRow, UsageSum, grouped

NUMBERS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")

rows = st.lists(
    st.builds(
        UsageRow,
        day=st.sampled_from(["2026-11-29", "2026-11-30"]),
        tenant_id=st.sampled_from(["acme", "globex"]),
        model=st.sampled_from(["a", "b"]),
        key_id=st.sampled_from(["key_1", "key_2"]),
        **{name: st.integers(0, 2**53) for name in NUMBERS},
    ),
    max_size=20,
)
dimensions = st.sets(st.sampled_from(DIMENSIONS))


def place_of(row: UsageRow | UsageSum, by: set[Dimension]) -> tuple[str | None, ...]:
    return (
        row.tenant_id,
        row.day if "day" in by else None,
        row.model if "model" in by else None,
        row.key_id if "key" in by else None,
    )


@given(rows, dimensions)
def test_each_place_has_one_sum_of_all_its_rows(rows: list[UsageRow], by: set[Dimension]) -> None:
    sums = grouped(rows, by)
    assert [place_of(one, set(DIMENSIONS)) for one in sums] == sorted(
        {place_of(row, by) for row in rows}, key=str
    )
    for name in NUMBERS:
        totals: Counter[tuple[str | None, ...]] = Counter()
        for row in rows:
            totals[place_of(row, by)] += getattr(row, name)
        assert {place_of(one, set(DIMENSIONS)): getattr(one, name) for one in sums} == dict(totals)


@given(rows)
def test_by_everything_distinct_rows_stay_as_they_are(rows: list[UsageRow]) -> None:
    distinct = {place_of(row, set(DIMENSIONS)): as_sum(row) for row in rows}
    assert grouped(list(distinct.values()), DIMENSIONS) == [distinct[place] for place in sorted(distinct)]


def as_sum(row: UsageRow) -> UsageSum:
    return UsageSum(**{name: getattr(row, name) for name in UsageSum.__struct_fields__})


@pytest.mark.parametrize("by", [(), DIMENSIONS])
def test_nothing_is_nothing(by: tuple[Dimension, ...]) -> None:
    assert grouped([], by) == []
