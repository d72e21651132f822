"""The audit log: every change, who made it, and what it changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.office import Office, told


@pytest.fixture
async def office() -> Office:
    return await Office().open()


async def entries(office: Office, query: str = "") -> list[Any]:
    found: list[Any] = (await office.ask("GET", f"/audit{query}")).json()["data"]
    return found


async def test_every_change_is_on_record_with_who_made_it(office: Office) -> None:
    await office.ask("POST", "/tiers", {"name": "gold"})
    await office.ask("PATCH", "/tiers/gold", {"terms": {"weight": 2}})
    await office.ask("POST", "/tenants", {"tenant_id": "x", "tier": "gold"})
    await office.ask("PATCH", "/tenants/x", {"disabled": True})
    key_id = (await office.make_key("x"))["key_id"]
    await office.ask("PATCH", f"/keys/{key_id}", {"name": "n"})
    new = (await office.ask("POST", f"/keys/{key_id}/rotate", {})).json()["key_id"]
    await office.ask("DELETE", f"/keys/{key_id}")
    await office.ask("DELETE", "/tenants/x")
    await office.ask("DELETE", "/tiers/gold")
    latest = (await entries(office))[:11]
    assert [(entry["action"], entry["target"]) for entry in reversed(latest)] == [
        ("tier.create", "gold"),
        ("tier.update", "gold"),
        ("tenant.create", "x"),
        ("tenant.update", "x"),
        ("key.create", key_id),
        ("key.update", key_id),
        ("key.create", new),
        ("key.update", key_id),
        ("key.delete", key_id),
        ("tenant.delete", "x"),
        ("tier.delete", "gold"),
    ]
    admin = {"tenant_id": "acme", "key_id": await office.id_of("admin")}
    assert all(entry["actor"] == admin for entry in latest)


async def test_an_entry_tells_what_was_and_what_is(office: Office) -> None:
    await office.ask("PATCH", "/tenants/globex", {"disabled": True})
    entry = (await entries(office))[0]
    assert entry["object"] == "audit_entry"
    assert entry["changes"]["disabled"] == [False, True]


async def test_what_was_refused_or_changed_nothing_is_not_on_record(office: Office) -> None:
    before = await entries(office)
    await office.ask("POST", "/tenants", {"tenant_id": "globex", "tier": "free"})
    await office.ask("PATCH", "/tenants/globex", {"tier": "gold"})
    await office.ask("PATCH", "/tenants/globex", {"tier": "free"})
    await office.ask("DELETE", "/tenants/globex", headers={"if-match": '"9"'})
    await office.ask("DELETE", "/tenants/globex", scope="admin:read")
    assert await entries(office) == before


async def test_pages_joined_are_the_log(office: Office) -> None:
    whole = await entries(office)
    seen, before = [], ""
    while True:
        page = (await office.ask("GET", f"/audit?limit=3{before}")).json()
        seen += page["data"]
        if not page["has_more"]:
            break
        before = f"&before={page['next_before']}"
    assert (seen, page["next_before"]) == (whole, None)
    assert len(whole) > 3


@pytest.mark.parametrize("before", ["", "x", "1", "1-", "-1", "1-1-1", f"{'9' * 16}-0"])
async def test_a_bad_place_is_400(office: Office, before: str) -> None:
    assert told(await office.ask("GET", f"/audit?before={before}")) == (400, "invalid_value", "before")
