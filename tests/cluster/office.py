"""The admin API as an operator meets it: the whole app over a record and a ledger in memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI

from tenants.api_key import Scope
from tenants.audit import LAUNCHER
from tenants.auth import Authenticator
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.settlement import Settlement
from tenants.store_memory import MemoryTenantStore
from tests.builders_tenants import SECRET, FakeClock, a_real_key, a_tenant
from tests.cluster.fake_spool import FakeSpool
from tests.cluster.fakes import WALL_TIME, FakeGateway

SCOPES: tuple[Scope, ...] = ("inference", "metrics", "admin", "admin:read")


@cache
def shared_gateway() -> FakeGateway:
    """Its routes take longer to build than most tests run. It holds no office's state."""
    return FakeGateway()


class Office:
    """`clock` is Unix time. The callers' keys belong to tenant `acme`; another tenant is `globex`."""

    def __init__(self, store: MemoryTenantStore | None = None, ledger: MemoryLedger | None = None) -> None:
        self.clock = FakeClock(WALL_TIME)
        self.store = store or MemoryTenantStore(self.clock)
        self.ledger = ledger or MemoryLedger(lambda: int(self.clock() * 10**6))
        self.spool = FakeSpool(self.ledger)
        self.authenticator = Authenticator(self.store, SECRET, self.clock)
        self.keys: dict[str, str] = {}
        self.services = replace(
            shared_gateway().services,
            store=self.store,
            ledger=self.ledger,
            adjust=self.spool.adjust,
            authenticator=self.authenticator,
            secret=SECRET,
            wall_clock=self.clock,
        )

    @property
    def app(self) -> FastAPI:
        """The gateway's, until another office asks for it."""
        app = shared_gateway().app
        app.state.services = self.services
        return app

    async def open(self) -> Office:
        await self.store.create_tenant(a_tenant("acme", created_at=WALL_TIME), LAUNCHER)
        await self.store.create_tenant(
            a_tenant("globex", name="globex", tier="free", created_at=WALL_TIME), LAUNCHER
        )
        for number, scope in enumerate(SCOPES):
            self.keys[scope], record = a_real_key(100 + number, scopes=(scope,), created_at=WALL_TIME)
            await self.store.create_key(record, LAUNCHER)
        return self

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        scope: str = "admin",
        key: str | None = None,
        headers: dict[str, str] | None = None,
        prefix: str = "/admin/v1",
    ) -> httpx.Response:
        """`body` is a value that becomes JSON, or bytes that claim to be."""
        sent = {"authorization": f"Bearer {key or self.keys[scope]}", **(headers or {})}
        content: dict[str, Any] = {} if body is None else {"json": body}
        if isinstance(body, bytes):
            content, sent = {"content": body}, {"content-type": "application/json", **sent}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://office") as client:
            raw = {name: value.encode("latin-1") for name, value in sent.items()}
            return await client.request(method, f"{prefix}{path}", headers=raw, **content)

    async def make_key(self, tenant_id: str = "globex", **fields: Any) -> dict[str, Any]:
        answer = await self.ask("POST", "/keys", {"tenant_id": tenant_id, **fields})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def id_of(self, scope: str) -> str:
        """The id of the caller's key of that scope."""
        keys = await self.store.list_keys("acme")
        return next(key.key_id for key in keys if key.scopes == (scope,))

    async def served(self, **fields: Any) -> None:
        """A request that was served and settled now."""
        plain: dict[str, Any] = {
            "request_id": f"r{fields}",
            "tenant_id": "globex",
            "key_id": "key_0000000000000001",
            "model": "tiny",
            "gateway_id": "g",
            "started_at": self.clock(),
            "ended_at": self.clock(),
            "outcome": "finished",
            "n": 1,
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "completion_tokens": 5,
            "cost": 7,
        }
        assert await self.ledger.settle([Settlement(**plain | fields)]) == ["applied"]


def told(answer: httpx.Response) -> tuple[int, str, str | None]:
    """Status, code and param of a refusal."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def words(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])
