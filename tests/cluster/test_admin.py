"""The operator's API: who passes which door, what is not there, and a record that does not answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tenants.ledger.memory_ledger import MemoryLedger
from tenants.store import CorruptRecord, StaleVersion, StoreUnavailable
from tenants.store_memory import MemoryTenantStore
from tests.cluster.office import Office, told, words

KEY_ID = "key_0000000000000000"
ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "/tiers", {"name": "x"}),
    ("GET", "/tiers", None),
    ("GET", "/tiers/free", None),
    ("PATCH", "/tiers/free", {"terms": {"weight": 2}}),
    ("DELETE", "/tiers/unlimited", None),
    ("POST", "/tenants", {"tenant_id": "x", "tier": "free"}),
    ("GET", "/tenants", None),
    ("GET", "/tenants/globex", None),
    ("PATCH", "/tenants/globex", {"name": "x"}),
    ("DELETE", "/tenants/globex", None),
    ("POST", "/keys", {"tenant_id": "globex"}),
    ("GET", "/keys", None),
    ("GET", f"/keys/{KEY_ID}", None),
    ("PATCH", f"/keys/{KEY_ID}", {"name": "x"}),
    ("DELETE", f"/keys/{KEY_ID}", None),
    ("POST", f"/keys/{KEY_ID}/rotate", {}),
    ("GET", "/limits/globex", None),
    ("POST", "/limits/globex/top-up", {"window": "day", "amount": 1}),
    ("POST", "/limits/globex/reset", {"window": "day"}),
    ("GET", "/usage", None),
    ("GET", "/audit", None),
]


@pytest.fixture
async def office() -> Office:
    return await Office().open()


def test_every_route_is_on_the_list() -> None:
    described = Office().app.openapi()["paths"]
    routes = {
        (method.upper(), path.removeprefix("/admin/v1"))
        for path, methods in described.items()
        for method in methods
        if path.startswith("/admin/") and "/rollouts" not in path and path != "/admin/v1/status"
    }
    names = {"globex": "{tenant_id}", KEY_ID: "{key_id}", "free": "{name}", "unlimited": "{name}"}
    named = set()
    for method, path, _ in ROUTES:
        parts = path.split("/")
        named.add((method, "/".join([*parts[:2], *(names.get(part, part) for part in parts[2:])])))
    assert routes == named


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_no_route_opens_without_an_admin_scope(
    office: Office, method: str, path: str, body: object
) -> None:
    count = await office.store.change_count()
    assert told(await office.ask(method, path, body, key="hr-none"))[:2] == (401, "invalid_api_key")
    for scope in ("inference", "metrics"):
        answer = await office.ask(method, path, body, scope=scope)
        assert told(answer)[:2] == (403, "insufficient_scope")
    assert await office.store.change_count() == count


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_scope_admin_read_may_look_and_nothing_else(
    office: Office, method: str, path: str, body: object
) -> None:
    count = await office.store.change_count()
    answer = await office.ask(method, path, body, scope="admin:read")
    if method == "GET":
        assert answer.status_code in (200, 404)
    else:
        assert told(answer)[:2] == (403, "insufficient_scope")
    assert await office.store.change_count() == count


async def test_both_scopes_may_see_rollouts(office: Office) -> None:
    for scope in ("admin", "admin:read"):
        assert (await office.ask("GET", "/rollouts", scope=scope)).status_code == 200


async def test_a_parameter_given_twice_or_unknown_is_400_naming_it(office: Office) -> None:
    answer = await office.ask("GET", "/tenants?limit=1&limit=2")
    assert told(answer) == (400, "invalid_value", "limit")
    answer = await office.ask("GET", "/keys?tenant=globex")
    assert told(answer) == (400, "unknown_parameter", "tenant")


@pytest.mark.parametrize("path", ["/tenants?limit=1&limit=2", "/tenants?limit=x", "/tenants/Nobody"])
async def test_who_may_not_pass_is_told_that_before_anything_is_read(office: Office, path: str) -> None:
    assert told(await office.ask("GET", path, key="hr-none"))[0] == 401
    assert told(await office.ask("GET", path, scope="inference"))[0] == 403


async def test_the_nested_routes_of_keys_are_gone(office: Office) -> None:
    assert (await office.ask("GET", "/tenants/globex/keys")).status_code == 404


class AwayStore(MemoryTenantStore):
    """Still knows the caller's key, and nothing else any more."""

    error: StoreUnavailable = StoreUnavailable("away")

    def __getattribute__(self, name: str) -> object:
        if name.startswith(("create_", "get_", "list_", "delete_", "put_", "note")):
            raise super().__getattribute__("error")
        return super().__getattribute__(name)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), CorruptRecord("tier free")])
@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_a_silent_store_is_503_with_a_time_to_come_back(
    office: Office, method: str, path: str, body: object, error: StoreUnavailable
) -> None:
    away = AwayStore()
    away.__dict__.update(office.store.__dict__, error=error)
    office.services = replace(office.services, store=away)
    answer = await office.ask(method, path, body)
    assert told(answer) == (503, "store_unavailable", None)
    assert answer.headers["retry-after"] == "1"


class AwayLedger(MemoryLedger):
    def __getattribute__(self, name: str) -> object:
        if name in ("standing", "adjust", "usage"):
            raise StoreUnavailable("away")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("path", "prefix"),
    [("/limits/globex", "/admin/v1"), ("/usage", "/admin/v1"), ("/usage", "/v1")],
)
async def test_a_silent_ledger_is_503_too(path: str, prefix: str) -> None:
    office = await Office(ledger=AwayLedger(lambda: 0)).open()
    answer = await office.ask("GET", path, prefix=prefix)
    assert told(answer) == (503, "store_unavailable", None)


class BusyStore(MemoryTenantStore):
    """Somebody else is always faster, `num_lost` times."""

    num_lost = 0

    async def put_tenant(self, tenant: Any, version: int | None, by: Any) -> Any:
        assert version is not None
        if self.num_lost:
            self.num_lost -= 1
            current = await self.get_tenant(tenant.tenant_id)
            await super().put_tenant(current, None, by)
            raise StaleVersion
        return await super().put_tenant(tenant, version, by)


async def test_a_change_is_made_again_from_what_is_there_when_somebody_was_faster() -> None:
    store = BusyStore()
    office = await Office(store).open()
    store.num_lost = 3
    answer = await office.ask("PATCH", "/tenants/globex", {"name": "late"})
    assert (answer.status_code, answer.json()["version"]) == (200, 5)
    store.num_lost = 100
    answer = await office.ask("PATCH", "/tenants/globex", {"name": "never"})
    assert told(answer) == (409, "conflict", None)
    store.num_lost = 1
    answer = await office.ask("PATCH", "/tenants/globex", {"name": "never"}, headers={"if-match": '"10"'})
    assert told(answer) == (412, "precondition_failed", "If-Match")
    assert (await store.get_tenant("globex")).name == "late"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "/tenants/nobody", None, "There is no tenant nobody."),
        ("PATCH", "/tenants/nobody", {}, "There is no tenant nobody."),
        ("DELETE", "/tenants/nobody", None, "There is no tenant nobody."),
        ("GET", "/tiers/gold", None, "There is no tier gold."),
        ("PATCH", "/tiers/gold", {}, "There is no tier gold."),
        ("DELETE", "/tiers/gold", None, "There is no tier gold."),
        ("GET", "/keys?tenant_id=nobody", None, "There is no tenant nobody."),
        ("POST", "/keys", {"tenant_id": "nobody"}, "There is no tenant nobody."),
        ("GET", "/keys/key_0000000000000000", None, "There is no key key_0000000000000000."),
        ("PATCH", "/keys/key_0000000000000000", {}, "There is no key key_0000000000000000."),
        ("DELETE", "/keys/key_0000000000000000", None, "There is no key key_0000000000000000."),
        ("POST", "/keys/key_0000000000000000/rotate", {}, "There is no key key_0000000000000000."),
        ("GET", "/limits/nobody", None, "There is no tenant nobody."),
        ("POST", "/limits/nobody/reset", {"window": "day"}, "There is no tenant nobody."),
        ("GET", "/usage?tenant_id=nobody", None, "There is no tenant nobody."),
    ],
)
async def test_what_is_not_there_is_404(
    office: Office, method: str, path: str, body: object, message: str
) -> None:
    answer = await office.ask(method, path, body)
    assert told(answer) == (404, "not_found", None)
    assert words(answer) == message


@pytest.mark.parametrize("path", ["/tenants/Nobody", "/tiers/x!", "/keys/key_0", "/limits/-"])
async def test_what_is_no_id_is_400_naming_it(office: Office, path: str) -> None:
    answer = await office.ask("GET", path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("tenant_id", "name", "key_id")
