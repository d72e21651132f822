"""Tiers: a set of terms with a name, changed field by field."""

from __future__ import annotations

import msgspec
import pytest

from tenants.store_memory import MemoryTenantStore
from tenants.tenant import Tenant
from tenants.terms import Terms
from tenants.tier import FREE, Tier
from tests.cluster.office import Office, told, words

GOLD = {"name": "gold", "terms": {"requests_per_min": 100, "budget_day": 5}}


@pytest.fixture
async def office() -> Office:
    return await Office().open()


async def test_a_tier_has_what_was_given_and_defaults_for_the_rest(office: Office) -> None:
    made = await office.ask("POST", "/tiers", GOLD)
    assert made.status_code == 201
    assert made.headers["location"] == "/admin/v1/tiers/gold"
    assert made.json() == {
        "object": "tier",
        "name": "gold",
        "terms": msgspec.to_builtins(Terms(requests_per_min=100, budget_day=5)),
        "version": 1,
    }
    shown = await office.ask("GET", "/tiers/gold")
    assert (shown.status_code, shown.json()) == (200, made.json())
    assert await office.store.get_tier("gold") == Tier(
        name="gold", terms=Terms(requests_per_min=100, budget_day=5)
    )


async def test_a_tier_without_terms_has_all_defaults(office: Office) -> None:
    made = await office.ask("POST", "/tiers", {"name": "plain"})
    assert made.json()["terms"] == msgspec.to_builtins(Terms())


async def test_tiers_are_listed_by_name(office: Office) -> None:
    listed = (await office.ask("GET", "/tiers")).json()
    assert [tier["name"] for tier in listed["data"]] == ["free", "paid", "unlimited"]


async def test_a_change_replaces_the_terms_that_it_names(office: Office) -> None:
    body = {"terms": {"requests_per_min": None, "weight": 9, "models": ["tiny"]}}
    changed = await office.ask("PATCH", "/tiers/free", body)
    terms = msgspec.structs.replace(FREE.terms, requests_per_min=None, weight=9, models=("tiny",))
    assert (changed.status_code, changed.json()["version"]) == (200, 2)
    assert changed.json()["terms"] == {**msgspec.to_builtins(terms), "models": ["tiny"]}
    assert await office.store.get_tier("free") == Tier(name="free", terms=terms, version=2)


@pytest.mark.parametrize("body", [{}, {"terms": {}}, {"terms": {"weight": FREE.terms.weight}}])
async def test_a_change_that_changes_nothing_is_not_written(office: Office, body: object) -> None:
    count = await office.store.change_count()
    changed = await office.ask("PATCH", "/tiers/free", body)
    assert (changed.status_code, changed.json()["version"]) == (200, 1)
    assert await office.store.change_count() == count


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "name"),
        ({"name": "Gold"}, "invalid_value", "name"),
        ({"name": "gold\n"}, "invalid_value", "name"),
        ({"name": "g" * 64}, "invalid_value", "name"),
        ({"name": "gold", "terms": None}, "invalid_type", "terms"),
        ({"name": "gold", "version": 1}, "unknown_parameter", "version"),
        ({"name": "gold", "terms": {"rpm": 1}}, "unknown_parameter", "terms.rpm"),
        ({"name": "gold", "terms": {"weight": 0}}, "invalid_value", "terms.weight"),
        ({"name": "gold", "terms": {"weight": None}}, "invalid_type", "terms.weight"),
        ({"name": "gold", "terms": {"weight": True}}, "invalid_type", "terms.weight"),
        ({"name": "gold", "terms": {"weight": 1.0}}, "invalid_type", "terms.weight"),
        ({"name": "gold", "terms": {"budget_day": 10**15 + 1}}, "invalid_value", "terms.budget_day"),
        ({"name": "gold", "terms": {"budget_day": 0.5}}, "invalid_type", "terms.budget_day"),
        ({"name": "gold", "terms": {"service_class": "slow"}}, "invalid_value", "terms.service_class"),
        ({"name": "gold", "terms": {"models": [""]}}, "invalid_value", "terms.models.0"),
        ({"name": "gold", "terms": {"models": ["m"] * 65}}, "invalid_value", "terms.models"),
    ],
)
async def test_a_bad_tier_is_400_naming_the_field(
    office: Office, body: object, code: str, param: str
) -> None:
    assert told(await office.ask("POST", "/tiers", body)) == (400, code, param)
    assert len(await office.store.list_tiers()) == 3


@pytest.mark.parametrize(
    ("body", "param"), [({"name": "x"}, "name"), ({"terms": {"weight": 0}}, "terms.weight")]
)
async def test_a_bad_change_is_400_naming_the_field(office: Office, body: object, param: str) -> None:
    answer = await office.ask("PATCH", "/tiers/free", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert await office.store.get_tier("free") == FREE


async def test_a_taken_name_is_409(office: Office) -> None:
    assert told(await office.ask("POST", "/tiers", {"name": "free"})) == (409, "conflict", None)
    assert await office.store.get_tier("free") == FREE


async def test_a_tier_in_use_stays(office: Office) -> None:
    assert told(await office.ask("DELETE", "/tiers/free")) == (409, "conflict", None)
    assert (await office.ask("DELETE", "/tiers/unlimited")).status_code == 204
    assert told(await office.ask("GET", "/tiers/unlimited")) == (404, "not_found", None)


class StoreWithABrokenTenant(MemoryTenantStore):
    """One tenant's overrides hold what no tier's terms allow."""

    async def list_tenants(self, after: str = "", limit: int | None = None) -> list[Tenant]:
        broken = Tenant(tenant_id="zz", name="z", tier="free", created_at=1.0, overrides={"weight": 0})
        return [*await super().list_tenants(after, limit), *([broken] if after < "zz" else [])]


async def test_a_change_that_breaks_a_tenant_s_overrides_is_409_naming_it() -> None:
    office = await Office(StoreWithABrokenTenant()).open()
    answer = await office.ask("PATCH", "/tiers/free", {"terms": {"weight": 3}})
    assert told(answer) == (409, "conflict", None)
    assert "tenant zz" in words(answer)
    assert await office.store.get_tier("free") == FREE
    assert (await office.ask("PATCH", "/tiers/paid", {"terms": {"weight": 3}})).status_code == 200
