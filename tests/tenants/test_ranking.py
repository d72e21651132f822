"""Names by a key that changes: beside a plain dict, and without a heap that grows for ever."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from tenants.ranking import Ranking

NAMES = st.sampled_from("abcde")


@given(
    st.lists(st.tuples(NAMES, st.none() | st.integers(0, 9)), max_size=100), st.integers(0, 10), st.booleans()
)
def test_gives_the_least_key_whatever_changed(
    changes: list[tuple[str, int | None]], limit: int, takes_the_limit_too: bool
) -> None:
    ranking, keys = Ranking(), dict[str, int]()
    for name, key in changes:
        if key is None:
            ranking.discard(name)
            keys.pop(name, None)
        else:
            ranking.put(name, (key,))
            keys[name] = key
        assert len(ranking) == len(keys)
        if keys:
            assert ranking.least() == min(((key,), name) for name, key in keys.items())
    due = sorted((key, name) for name, key in keys.items() if key < limit + takes_the_limit_too)
    take = ranking.take_to if takes_the_limit_too else ranking.take_below
    assert take(limit) == [name for _, name in due]
    assert len(ranking) == len(keys) - len(due)


def test_forgets_the_keys_that_were_replaced() -> None:
    ranking = Ranking()
    ranking.put("first", (-1,))
    for key in range(10_000):
        ranking.put("other", (key,))
    assert sum(sys.getsizeof(part) for part in vars(ranking).values()) < 4096
