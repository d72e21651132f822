"""The door: what opens it, and exactly what is said when it stays shut."""

from types import SimpleNamespace

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from cluster.api.auth import client_address, require
from cluster.api.errors import ApiError
from tenants.api_key import new_key
from tenants.auth import Authenticator
from tenants.store import Account, StoreUnavailable
from tenants.store_memory import MemoryTenantStore
from tests.builders_tenants import BY, SECRET, FakeClock, a_key, a_real_key, a_tenant, switched_off


class House:
    """An app with one route a scope, and its record."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryTenantStore()
        self.app = FastAPI()
        self.app.state.services = SimpleNamespace(authenticator=Authenticator(self.store, SECRET, self.clock))
        self.app.add_exception_handler(ApiError, told_as_json)
        for path, scopes in (("/infer", ["inference"]), ("/metrics", ["metrics", "admin"]), ("/none", [])):
            self.app.get(path)(self.room(*scopes))

    def room(self, *scopes: str):
        door = require(*scopes)

        async def room(account: Account = Depends(door)) -> str:
            return account.tenant.tenant_id

        return room

    async def knows(self, **fields: object) -> str:
        key, record = a_real_key(**fields)
        if await self.store.get_tenant("acme") is None:
            await self.store.create_tenant(a_tenant(), BY)
        await self.store.create_key(record, BY)
        return key

    async def get(self, path: str, authorization: str | None = None) -> httpx.Response:
        headers = {} if authorization is None else {"Authorization": authorization}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
            return await client.get(path, headers=headers)


async def told_as_json(request: Request, error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status, error.headers)


@pytest.fixture
def house() -> House:
    return House()


async def test_a_good_key_passes_and_names_its_tenant(house: House) -> None:
    key = await house.knows()
    for scheme in ("Bearer", "bearer"):
        answer = await house.get("/infer", f"{scheme} {key}")
        assert (answer.status_code, answer.json()) == (200, "acme")


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic aHI6aHI=", "hr-without-a-scheme"]
)
async def test_no_key_is_401_with_a_challenge(house: House, authorization: str | None) -> None:
    answer = await house.get("/infer", authorization)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_malformed_unknown_expired_deleted_and_misplaced_keys_are_told_alike(house: House) -> None:
    expired = await house.knows(number=1, expires_at=house.clock.now)
    deleted = await house.knows(number=2)
    misplaced = await house.knows(number=3, addresses=("192.0.2.0/24",))
    await house.store.delete_key(a_key(2).key_id, None, BY)
    answers = [
        await house.get("/infer", f"Bearer {key}")
        for key in ("hr-malformed", new_key(), expired, deleted, misplaced)
    ]
    assert [(answer.status_code, answer.headers["www-authenticate"]) for answer in answers] == [
        (401, "Bearer")
    ] * 5
    assert {answer.text for answer in answers} == {
        '{"error":{"message":"This API key is not valid.","type":"authentication_error",'
        '"param":null,"code":"invalid_api_key"}}'
    }


async def test_a_key_in_the_url_opens_nothing(house: House) -> None:
    key = await house.knows()
    for path in (f"/infer?api_key={key}", f"/infer?authorization=Bearer%20{key}"):
        assert (await house.get(path)).status_code == 401


async def test_a_disabled_tenant_is_403(house: House) -> None:
    await house.store.create_tenant(switched_off(a_tenant()), BY)
    answer = await house.get("/infer", f"Bearer {await house.knows()}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_disabled")


@pytest.mark.parametrize(
    ("path", "scope", "status"),
    [
        ("/infer", "inference", 200),
        ("/infer", "admin", 403),
        ("/metrics", "metrics", 200),
        ("/metrics", "admin", 200),
        ("/metrics", "inference", 403),
        ("/none", "admin", 403),
    ],
)
async def test_a_scope_opens_only_its_own_rooms(house: House, path: str, scope: str, status: int) -> None:
    answer = await house.get(path, f"Bearer {await house.knows(scopes=(scope,))}")
    assert answer.status_code == status


async def test_the_missing_scope_is_named(house: House) -> None:
    answer = await house.get("/metrics", f"Bearer {await house.knows()}")
    assert answer.json()["error"] == {
        "message": "This needs a key of scope metrics or admin.",
        "type": "permission_error",
        "param": None,
        "code": "insufficient_scope",
    }


async def test_a_silent_store_is_503_and_never_a_pass(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(key_hash: str) -> None:
        raise StoreUnavailable("away")

    key = await house.knows()
    monkeypatch.setattr(house.store, "find_key", away)
    answer = await house.get("/infer", f"Bearer {key}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")


def from_peer(peer: str | None, *forwarded: str) -> Request:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return Request({"type": "http", "client": peer and (peer, 4711), "headers": headers})


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("127.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("::1", ["192.0.2.7"], "192.0.2.7"),
        ("::ffff:127.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["10.0.0.1, 192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["10.0.0.1", "192.0.2.7"], "192.0.2.7"),  # a header that was added, not appended to
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["10.0.0.1, "], "127.0.0.1"),
        ("192.0.2.7", ["10.0.0.1"], "192.0.2.7"),  # from another machine nothing is believed
        ("2001:db8::7", ["::1"], "2001:db8::7"),
        ("unix:", ["10.0.0.1"], "unix:"),
        (None, ["10.0.0.1"], None),
    ],
)
def test_a_client_is_where_its_peer_or_the_proxy_of_this_machine_says(
    peer: str | None, forwarded: list[str], address: str | None
) -> None:
    assert client_address(from_peer(peer, *forwarded)) == address


async def test_a_key_that_is_bound_to_addresses_passes_from_there_only(house: House) -> None:
    key = await house.knows(addresses=("127.0.0.0/8",))  # where the client of the tests is
    assert (await house.get("/infer", f"Bearer {key}")).status_code == 200
    key = await house.knows(number=2, addresses=("192.0.2.0/24",))
    assert (await house.get("/infer", f"Bearer {key}")).status_code == 401


def test_the_route_is_described_as_guarded(house: House) -> None:
    operation = house.app.openapi()["paths"]["/infer"]["get"]
    assert operation["security"] == [{"ApiKey": []}]
