"""Tenants: made, changed, frozen, deleted; whose terms are their tier's but for what they override."""

from __future__ import annotations

import pytest

from tenants.auth import DisabledTenant, InvalidKey
from tenants.tenant import terms_of
from tenants.tier import FREE, PAID
from tests.cluster.fakes import WALL_TIME
from tests.cluster.office import Office, told, words

INITECH = {
    "object": "tenant",
    "tenant_id": "initech",
    "name": "Initech",
    "tier": "paid",
    "overrides": {"budget_day": 10, "max_concurrency": None},
    "disabled": False,
    "created_at": WALL_TIME,
    "version": 1,
}
NEW = {name: INITECH[name] for name in ("tenant_id", "name", "tier", "overrides")}


@pytest.fixture
async def office() -> Office:
    return await Office().open()


async def test_a_tenant_is_made_shown_and_listed(office: Office) -> None:
    made = await office.ask("POST", "/tenants", NEW)
    assert (made.status_code, made.json()) == (201, INITECH)
    assert made.headers["location"] == "/admin/v1/tenants/initech"
    shown = await office.ask("GET", "/tenants/initech")
    assert (shown.status_code, shown.json()) == (200, INITECH)
    listed = (await office.ask("GET", "/tenants")).json()
    assert [tenant["tenant_id"] for tenant in listed["data"]] == ["acme", "globex", "initech"]


async def test_overrides_are_terms_that_hold(office: Office) -> None:
    await office.ask("POST", "/tenants", NEW)
    made = await office.make_key("initech")
    account = await office.authenticator.authenticate(made["key"], None)
    assert account.terms == terms_of(PAID, {"budget_day": 10, "max_concurrency": None})


async def test_a_tenant_without_a_name_is_called_by_its_id(office: Office) -> None:
    answer = await office.ask("POST", "/tenants", {"tenant_id": "a_1-b", "tier": "free"})
    assert (answer.status_code, answer.json()["name"]) == (201, "a_1-b")


async def test_a_taken_id_is_409(office: Office) -> None:
    answer = await office.ask("POST", "/tenants", {"tenant_id": "acme", "tier": "free"})
    assert told(answer) == (409, "conflict", None)
    assert words(answer) == "Tenant acme already exists."
    assert (await office.ask("GET", "/tenants/acme")).json()["tier"] == "paid"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tier": "free"}, "missing_required_parameter", "tenant_id"),
        ({"tenant_id": "x"}, "missing_required_parameter", "tier"),
        ({"tenant_id": "x", "tier": 4}, "invalid_type", "tier"),
        ({"tenant_id": "X", "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "x\n", "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "", "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "x" * 64, "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "x", "tier": "free", "name": ""}, "invalid_value", "name"),
        ({"tenant_id": "x", "tier": "free", "name": "n" * 129}, "invalid_value", "name"),
        ({"tenant_id": "x", "tier": "free", "name": "\x1b[2J"}, "invalid_value", "name"),
        ({"tenant_id": "x", "tier": "free", "disabled": 1}, "invalid_type", "disabled"),
        ({"tenant_id": "x", "tier": "free", "salt": "s"}, "unknown_parameter", "salt"),
        ({"tenant_id": "x", "tier": "free", "overrides": {"a": 1}}, "unknown_parameter", "overrides.a"),
        (
            {"tenant_id": "x", "tier": "free", "overrides": {"budget_day": -1}},
            "invalid_value",
            "overrides.budget_day",
        ),
        (
            {"tenant_id": "x", "tier": "free", "overrides": {"offline": None}},
            "invalid_value",
            "overrides.offline",
        ),
        (b"{", "invalid_json", None),
        (b"[" * 10_000, "invalid_json", None),
        (b'{"tenant_id":"x","tenant_id":"y","tier":"free"}', "invalid_json", None),
    ],
)
async def test_a_bad_tenant_is_400_naming_the_field(
    office: Office, body: object, code: str, param: str | None
) -> None:
    assert told(await office.ask("POST", "/tenants", body)) == (400, code, param)
    assert len(await office.store.list_tenants()) == 2


async def test_a_bad_value_is_answered_in_plain_words(office: Office) -> None:
    answer = await office.ask("POST", "/tenants", {"tenant_id": "X", "tier": "free"})
    assert words(answer).startswith("'tenant_id': must be 1 to 63 characters from a-z")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/tenants", {"tenant_id": "x", "tier": "gold"}),
        ("PATCH", "/tenants/globex", {"tier": "gold"}),
    ],
)
async def test_a_tier_that_is_not_there_is_404_naming_it(
    office: Office, method: str, path: str, body: object
) -> None:
    answer = await office.ask(method, path, body)
    assert told(answer) == (404, "not_found", "tier")
    assert words(answer) == "There is no tier gold."
    assert (await office.store.get_tenant("globex")).tier == "free"  # type: ignore[union-attr]


async def test_a_change_replaces_the_fields_that_it_names(office: Office) -> None:
    await office.ask("POST", "/tenants", NEW)
    changed = await office.ask("PATCH", "/tenants/initech", {"name": "I.", "tier": "free"})
    assert (changed.status_code, changed.json()) == (
        200,
        {**INITECH, "name": "I.", "tier": "free", "version": 2},
    )


async def test_overrides_are_replaced_as_a_whole(office: Office) -> None:
    await office.ask("POST", "/tenants", NEW)
    changed = await office.ask("PATCH", "/tenants/initech", {"overrides": {"weight": 2}})
    assert changed.json()["overrides"] == {"weight": 2}
    assert (await office.ask("PATCH", "/tenants/initech", {"overrides": {}})).json()["overrides"] == {}


async def test_a_changed_tenant_has_its_new_terms_at_once_in_this_gateway(office: Office) -> None:
    made = await office.make_key()
    assert (await office.authenticator.authenticate(made["key"], None)).terms == FREE.terms
    await office.ask("PATCH", "/tenants/globex", {"tier": "paid"})
    assert (await office.authenticator.authenticate(made["key"], None)).terms == PAID.terms


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": None}, "name"),
        ({"disabled": None}, "disabled"),
        ({"overrides": None}, "overrides"),
        ({"overrides": {"weight": 1001}}, "overrides.weight"),
        ({"tenant_id": "other"}, "tenant_id"),
        ({"created_at": 0}, "created_at"),
        ({"version": 7}, "version"),
    ],
)
async def test_a_bad_change_is_400_naming_the_field(office: Office, body: object, param: str) -> None:
    before = await office.store.get_tenant("globex")
    answer = await office.ask("PATCH", "/tenants/globex", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert await office.store.get_tenant("globex") == before


async def test_a_frozen_tenant_s_keys_are_refused_at_once_and_work_again_when_it_is_let_go(
    office: Office,
) -> None:
    made = await office.make_key()
    await office.authenticator.authenticate(made["key"], None)  # it is in the cache now
    assert (await office.ask("PATCH", "/tenants/globex", {"disabled": True})).json()["disabled"] is True
    with pytest.raises(DisabledTenant):
        await office.authenticator.authenticate(made["key"], None)
    assert (await office.ask("PATCH", "/tenants/globex", {"disabled": False})).status_code == 200
    assert [one.num_freezes for one in await office.store.list_tenants()] == [0, 1]
    await office.authenticator.authenticate(made["key"], None)


async def test_a_deleted_tenant_is_gone_with_its_keys_at_once(office: Office) -> None:
    made = await office.make_key()
    await office.authenticator.authenticate(made["key"], None)
    assert (await office.ask("DELETE", "/tenants/globex")).status_code == 204
    with pytest.raises(InvalidKey):
        await office.authenticator.authenticate(made["key"], None)
    assert told(await office.ask("GET", "/tenants/globex")) == (404, "not_found", None)
    assert told(await office.ask("GET", f"/keys/{made['key_id']}")) == (404, "not_found", None)


async def test_the_caller_s_own_tenant_is_neither_deleted_nor_frozen(office: Office) -> None:
    assert told(await office.ask("DELETE", "/tenants/acme")) == (409, "conflict", None)
    assert told(await office.ask("PATCH", "/tenants/acme", {"disabled": True})) == (409, "conflict", None)
    assert (await office.ask("PATCH", "/tenants/acme", {"disabled": False})).status_code == 200
    assert (await office.ask("GET", "/tenants")).status_code == 200
