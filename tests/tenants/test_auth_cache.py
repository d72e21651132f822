"""The cache of keys: bounded, least recently used out first, and never young by a clock set back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.auth_cache import AuthCache, CachedAccount
from tests.builders_tenants import a_key, a_tenant, an_account

FOUND = CachedAccount(an_account(), at=0.0)
UNKNOWN = CachedAccount(None, at=0.0)


def test_what_was_put_is_there_until_replaced() -> None:
    cache = AuthCache(max_entries=2)
    assert cache.get("a") is None
    cache.put("a", FOUND)
    assert cache.get("a") == FOUND
    cache.put("a", UNKNOWN)
    assert (cache.get("a"), len(cache)) == (UNKNOWN, 1)


def test_the_least_recently_used_goes_first() -> None:
    cache = AuthCache(max_entries=2)
    cache.put("a", FOUND)
    cache.put("b", FOUND)
    cache.get("a")
    cache.put("c", FOUND)
    assert [name for name in "abc" if cache.get(name)] == ["a", "c"]


def test_a_flood_of_unknown_keys_evicts_no_found_one() -> None:
    cache = AuthCache(max_entries=2)
    cache.put("mine", FOUND)
    for number in range(100):
        cache.put(str(number), UNKNOWN)
    assert cache.get("mine") == FOUND
    assert len(cache) == 3


def test_dropping_takes_the_matching_found_keys() -> None:
    cache = AuthCache(max_entries=4)
    cache.put("a", FOUND)
    cache.put("b", CachedAccount(an_account(a_key(2), a_tenant("other")), at=0.0))
    cache.put("c", UNKNOWN)
    cache.drop(lambda account: account.tenant.tenant_id == "other")
    assert [cache.get(name) for name in "abc"] == [FOUND, None, UNKNOWN]


@pytest.mark.parametrize(
    ("now", "is_young"), [(0.0, True), (0.49, True), (0.5, False), (9.0, False), (-0.1, False)]
)
def test_age_counts_from_the_answer(now: float, is_young: bool) -> None:
    assert FOUND.is_younger_than(0.5, now) is is_young


def test_a_cache_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_entries must be at least 1, not 0"):
        AuthCache(max_entries=0)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([FOUND, UNKNOWN]))),
)
def test_it_never_grows_beyond_its_bound_and_always_knows_the_last(
    max_entries: int, puts: list[tuple[str, CachedAccount]]
) -> None:
    cache = AuthCache(max_entries)
    for name, seen in puts:
        cache.put(name, seen)
        assert cache.get(name) == seen
        assert len(cache) <= 2 * max_entries
