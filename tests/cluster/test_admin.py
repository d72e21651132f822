"""The operator's API: a tenant's life from its making to its end, and every refusal."""

from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from cluster.api.admin import router
from cluster.api.errors import ApiError
from tenants.api_key import hash_key, is_well_formed
from tenants.auth import Authenticator, InvalidKey
from tenants.store import StoreUnavailable
from tenants.store_memory import MemoryTenantStore
from tests.builders_tenants import SECRET, FakeClock, a_real_key, a_tenant

ACME = {
    "object": "tenant",
    "tenant_id": "acme",
    "name": "Acme Inc.",
    "tier": "paid",
    "created_at": 1_000_000.0,
    "disabled": False,
}


class Office:
    """The admin API over a record in memory, with an operator who has an admin key."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryTenantStore()
        self.authenticator = Authenticator(self.store, SECRET, self.clock)
        self.app = FastAPI()
        self.app.state.services = SimpleNamespace(
            authenticator=self.authenticator, store=self.store, secret=SECRET, wall_clock=self.clock
        )
        self.app.include_router(router)
        self.app.add_exception_handler(ApiError, told_as_json)

    async def open(self) -> None:
        await self.store.create_tenant(a_tenant("operator"))
        self.key, self.record = a_real_key(77, tenant_id="operator", scopes=("admin",))
        await self.store.create_key(self.record)

    async def ask(
        self, method: str, path: str, body: object = None, key: str | None = None
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://office") as client:
            if isinstance(body, bytes):
                headers["Content-Type"] = "application/json"
                return await client.request(method, f"/admin/v1{path}", content=body, headers=headers)
            return await client.request(method, f"/admin/v1{path}", json=body, headers=headers)

    async def with_acme(self) -> None:
        await self.ask("POST", "/tenants", {"tenant_id": "acme", "name": "Acme Inc.", "tier": "paid"})

    async def key_of_acme(self, **fields: object) -> dict:
        return (await self.ask("POST", "/tenants/acme/keys", fields)).json()


async def told_as_json(request: Request, error: ApiError) -> JSONResponse:
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["Retry-After"] = f"{error.retry_after_s:.0f}"
    return JSONResponse(error.body(), error.status, headers)


@pytest.fixture
async def office() -> Office:
    office = Office()
    await office.open()
    return office


def told(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_a_tenant_is_made_shown_and_listed(office: Office) -> None:
    made = await office.ask("POST", "/tenants", {"tenant_id": "acme", "name": "Acme Inc.", "tier": "paid"})
    assert (made.status_code, made.json()) == (201, ACME)
    shown = await office.ask("GET", "/tenants/acme")
    assert (shown.status_code, shown.json()) == (200, ACME)
    listed = (await office.ask("GET", "/tenants")).json()
    assert listed["object"] == "list"
    assert [tenant["tenant_id"] for tenant in listed["data"]] == ["acme", "operator"]


async def test_a_tenant_without_a_name_is_called_by_its_id(office: Office) -> None:
    answer = await office.ask("POST", "/tenants", {"tenant_id": "a_1-b", "tier": "free"})
    assert (answer.status_code, answer.json()["name"]) == (201, "a_1-b")


async def test_a_taken_id_is_409(office: Office) -> None:
    await office.with_acme()
    answer = await office.ask("POST", "/tenants", {"tenant_id": "acme", "tier": "free"})
    assert told(answer) == (409, "conflict", None)
    assert answer.json()["error"]["message"] == "Tenant acme already exists."
    assert (await office.ask("GET", "/tenants/acme")).json() == ACME


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tier": "free"}, "missing_required_parameter", "tenant_id"),
        ({"tenant_id": "x"}, "missing_required_parameter", "tier"),
        ({"tenant_id": "x", "tier": "gold"}, "invalid_value", "tier"),
        ({"tenant_id": "x", "tier": 4}, "invalid_type", "tier"),
        ({"tenant_id": "X", "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "x\n", "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "", "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "x" * 64, "tier": "free"}, "invalid_value", "tenant_id"),
        ({"tenant_id": "x", "tier": "free", "name": ""}, "invalid_value", "name"),
        ({"tenant_id": "x", "tier": "free", "name": "n" * 129}, "invalid_value", "name"),
        ({"tenant_id": "x", "tier": "free", "disabled": True}, "unknown_parameter", "disabled"),
        (b"{", "invalid_json", None),
        (b"[" * 10_000, "invalid_json", None),
        (b'{"tenant_id":"x","tenant_id":"y","tier":"free"}', "invalid_json", None),
    ],
)
async def test_a_bad_tenant_is_400_naming_the_field(
    office: Office, body: object, code: str, param: str | None
) -> None:
    assert told(await office.ask("POST", "/tenants", body)) == (400, code, param)
    assert len(await office.store.list_tenants()) == 1


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tenants", {"tenant_id": "X", "tier": "free"}, "'tenant_id': must be 1 to 63 characters from a-z"),
        ("/tenants", {"tenant_id": "x", "tier": "gold"}, "'tier': must be one of: free, paid."),
        ("/tenants/acme/keys", {"scopes": []}, "'scopes': must name at least one scope."),
        ("/tenants/acme/keys", {"scopes": ["admin"] * 2}, "'scopes': must name each scope once."),
    ],
)
async def test_a_bad_value_is_answered_in_plain_words(
    office: Office, path: str, body: object, words: str
) -> None:
    await office.with_acme()
    assert words in (await office.ask("POST", path, body)).json()["error"]["message"]


async def test_a_new_key_is_shown_once_and_works(office: Office) -> None:
    await office.with_acme()
    answer = await office.ask("POST", "/tenants/acme/keys", {"scopes": ["inference", "metrics"]})
    made = answer.json()
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    assert is_well_formed(made["key"])
    identity = await office.authenticator.authenticate(made["key"])
    assert (identity.tenant.tenant_id, identity.scopes) == ("acme", ("inference", "metrics"))
    assert made == {
        "object": "key",
        "key_id": identity.key.key_id,
        "tenant_id": "acme",
        "scopes": ["inference", "metrics"],
        "hint": made["key"][-4:],
        "created_at": 1_000_000.0,
        "expires_at": None,
        "key": made["key"],
    }
    listed = await office.ask("GET", "/tenants/acme/keys")
    assert listed.json()["data"] == [{name: value for name, value in made.items() if name != "key"}]
    assert made["key"] not in listed.text
    assert hash_key(SECRET, made["key"]) not in listed.text


async def test_a_key_that_asks_for_nothing_may_infer_for_ever(office: Office) -> None:
    await office.with_acme()
    made = await office.key_of_acme()
    assert (made["scopes"], made["expires_at"]) == (["inference"], None)


async def test_a_key_ends_when_it_was_told_to(office: Office) -> None:
    await office.with_acme()
    made = await office.key_of_acme(expires_in_s=60)
    assert made["expires_at"] == 1_000_060.0
    await office.authenticator.authenticate(made["key"])
    office.clock.advance(60)
    with pytest.raises(InvalidKey):
        await office.authenticator.authenticate(made["key"])


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"scopes": []}, "invalid_value", "scopes"),
        ({"scopes": ["root"]}, "invalid_value", "scopes.0"),
        ({"scopes": ["admin", "admin"]}, "invalid_value", "scopes"),
        ({"scopes": "admin"}, "invalid_type", "scopes"),
        ({"expires_in_s": 0}, "invalid_value", "expires_in_s"),
        ({"expires_in_s": 10**12}, "invalid_value", "expires_in_s"),
        ({"expires_in_s": True}, "invalid_type", "expires_in_s"),
        ({"expires_in_s": "60"}, "invalid_type", "expires_in_s"),
        ({"key": "hr-mine"}, "unknown_parameter", "key"),
    ],
)
async def test_a_bad_key_is_400_naming_the_field(office: Office, body: dict, code: str, param: str) -> None:
    await office.with_acme()
    assert told(await office.ask("POST", "/tenants/acme/keys", body)) == (400, code, param)
    assert await office.store.list_keys("acme") == []


async def test_a_deleted_key_is_dead_at_once(office: Office) -> None:
    await office.with_acme()
    made = await office.key_of_acme()
    await office.authenticator.authenticate(made["key"])  # it is in the cache now
    answer = await office.ask("DELETE", f"/tenants/acme/keys/{made['key_id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    with pytest.raises(InvalidKey):
        await office.authenticator.authenticate(made["key"])


async def test_a_deleted_tenant_is_gone_with_its_keys_at_once(office: Office) -> None:
    await office.with_acme()
    made = await office.key_of_acme()
    await office.authenticator.authenticate(made["key"])
    assert (await office.ask("DELETE", "/tenants/acme")).status_code == 204
    with pytest.raises(InvalidKey):
        await office.authenticator.authenticate(made["key"])
    assert told(await office.ask("GET", "/tenants/acme")) == (404, "not_found", None)


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "/tenants/nobody", None, "There is no tenant nobody."),
        ("DELETE", "/tenants/nobody", None, "There is no tenant nobody."),
        ("GET", "/tenants/nobody/keys", None, "There is no tenant nobody."),
        ("POST", "/tenants/nobody/keys", {}, "There is no tenant nobody."),
        ("DELETE", "/tenants/operator/keys/key_0", None, "Tenant operator has no key key_0."),
    ],
)
async def test_what_is_not_there_is_404(
    office: Office, method: str, path: str, body: object, message: str
) -> None:
    answer = await office.ask(method, path, body)
    assert told(answer) == (404, "not_found", None)
    assert answer.json()["error"]["message"] == message


async def test_the_last_way_in_is_not_thrown_away(office: Office) -> None:
    own_key = f"/tenants/operator/keys/{office.record.key_id}"
    assert told(await office.ask("DELETE", own_key)) == (409, "conflict", None)
    assert told(await office.ask("DELETE", "/tenants/operator")) == (409, "conflict", None)
    assert (await office.ask("GET", "/tenants")).status_code == 200


ROUTES = [
    ("POST", "/tenants"),
    ("GET", "/tenants"),
    ("GET", "/tenants/acme"),
    ("DELETE", "/tenants/acme"),
    ("POST", "/tenants/acme/keys"),
    ("GET", "/tenants/acme/keys"),
    ("DELETE", "/tenants/acme/keys/key_0"),
]


def test_every_route_is_on_the_list() -> None:
    routes = {(method, route.path) for route in router.routes for method in route.methods}
    named = {
        (method, path.replace("acme", "{tenant_id}").replace("key_0", "{key_id}")) for method, path in ROUTES
    }
    assert routes == {(method, f"/admin/v1{path}") for method, path in named}


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_route_opens_without_the_admin_scope(office: Office, method: str, path: str) -> None:
    await office.with_acme()
    guest = await office.key_of_acme(scopes=["inference", "metrics"])
    assert told(await office.ask(method, path, key="hr-none"))[:2] == (401, "invalid_api_key")
    assert told(await office.ask(method, path, key=guest["key"]))[:2] == (403, "insufficient_scope")
    assert len(await office.store.list_tenants()) == 2


class AwayStore(MemoryTenantStore):
    """Still knows the caller's key, and nothing else any more."""

    def __getattribute__(self, name: str) -> object:
        if name.startswith(("create_", "get_", "list_", "delete_")):
            raise StoreUnavailable("away")
        return super().__getattribute__(name)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_silent_store_is_503_with_a_time_to_come_back(office: Office, method: str, path: str) -> None:
    away = AwayStore()
    away.__dict__.update(office.store.__dict__)
    office.app.state.services.store = away
    body = {"tenant_id": "x", "tier": "free"} if path == "/tenants" else {}
    answer = await office.ask(method, path, body if method == "POST" else None)
    assert told(answer) == (503, "store_unavailable", None)
    assert answer.headers["retry-after"] == "1"


async def test_the_bodies_are_in_the_description(office: Office) -> None:
    described = office.app.openapi()["paths"]["/admin/v1/tenants"]["post"]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert sorted(schema["properties"]) == ["name", "tenant_id", "tier"]
    assert described["security"] == [{"ApiKey": []}]
