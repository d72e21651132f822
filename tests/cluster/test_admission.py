"""Admission: the record decides, one round trip asks it, and no answer ever reaches another's question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from cluster.admission import Admission, Lookup
from cluster.api.errors import ApiError
from cluster.index.prefix_index import Changes
from cluster.index.redis_index import RedisPrefixIndex, entries_of
from engine.block_hash import hash_blocks
from tenants.redis_client import connect
from tenants.store_redis import TENANTS_KEY
from tenants.tenant import Tenant
from tests.builders_tenants import a_tenant, switched_off


class Degraded:
    """Counts who was let in without Redis."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def degraded() -> Degraded:
    return Degraded()


def admission_of(client: Redis, degraded: Degraded, lookups: list[bool] | None = None) -> Admission:
    return Admission(client, RedisPrefixIndex(client), degraded, ([] if lookups is None else lookups).append)


async def put(redis: Redis, tenant: Tenant) -> None:
    await redis.hset(TENANTS_KEY, tenant.tenant_id, msgspec.json.encode(tenant))


async def refused(admission: Admission, tenant: Tenant) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await admission.admit(tenant)
    return caught.value


class TestTheRecord:
    async def test_is_what_counts_not_what_the_key_s_cache_held(
        self, redis: Redis, degraded: Degraded
    ) -> None:
        await put(redis, a_tenant(tier="paid"))
        admitted = await admission_of(redis, degraded).admit(a_tenant(tier="free"))
        assert admitted == (a_tenant(tier="paid"), {})
        assert degraded.count == 0

    async def test_of_a_deleted_tenant_is_401(self, redis: Redis, degraded: Degraded) -> None:
        error = await refused(admission_of(redis, degraded), a_tenant())
        assert (error.status, error.code) == (401, "invalid_api_key")

    async def test_of_a_disabled_tenant_is_403(self, redis: Redis, degraded: Degraded) -> None:
        await put(redis, switched_off(a_tenant()))
        error = await refused(admission_of(redis, degraded), a_tenant())
        assert (error.status, error.code) == (403, "tenant_disabled")

    async def test_that_is_not_ours_lets_nobody_in(self, redis: Redis, degraded: Degraded) -> None:
        await redis.hset(TENANTS_KEY, "acme", b"\x80\x04N.")
        error = await refused(admission_of(redis, degraded), a_tenant())
        assert (error.status, error.code) == (503, "store_unavailable")
        assert degraded.count == 0

    async def test_under_a_key_of_another_type_lets_nobody_in(self, redis: Redis, degraded: Degraded) -> None:
        await redis.set(TENANTS_KEY, "a string")
        error = await refused(admission_of(redis, degraded), a_tenant())
        assert (error.status, error.code) == (503, "store_unavailable")
        assert degraded.count == 0


ROOT = b"r" * 16
CHAIN = hash_blocks(ROOT, range(128), 16)
LOOKUP = Lookup(ROOT, CHAIN, (1, 2))


class TestTheIndex:
    async def test_s_claims_come_with_the_tenant(self, redis: Redis, degraded: Degraded) -> None:
        await put(redis, a_tenant())
        index = RedisPrefixIndex(redis)
        for incarnation, stored in ((1, (CHAIN[3], CHAIN[7])), (2, (CHAIN[3],)), (3, (CHAIN[3],))):
            await index.claim(incarnation)
            await index.publish(incarnation, [Changes(ROOT, stored)], frozenset())
        seen: list[bool] = []
        admitted = await admission_of(redis, degraded, seen).admit(a_tenant(), [LOOKUP])
        assert admitted == (a_tenant(), {1: 8, 2: 4})
        assert seen == [True]

    async def test_is_asked_in_the_tenant_s_own_round_trip(
        self, redis: Redis, degraded: Degraded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await put(redis, a_tenant())
        sent: list[int] = []
        execute = Pipeline.execute

        async def counted(pipeline: Pipeline, **options: Any) -> Any:
            sent.append(len(pipeline))
            return await execute(pipeline, **options)

        monkeypatch.setattr(Pipeline, "execute", counted)
        await admission_of(redis, degraded).admit(a_tenant(), [LOOKUP, LOOKUP])
        assert sent == [3]

    @pytest.mark.parametrize("fault", ["script forgotten", "entry is no string"])
    async def test_that_fails_alone_costs_its_claims_only(
        self, redis: Redis, degraded: Degraded, fault: str
    ) -> None:
        await put(redis, a_tenant())
        if fault == "script forgotten":
            await redis.script_flush()
        else:
            await RedisPrefixIndex(redis).look_up(*LOOKUP)
            for block_hash in (CHAIN[3], CHAIN[7]):
                await redis.rpush(entries_of(ROOT).encode() + block_hash, "x")
        seen: list[bool] = []
        admitted = await admission_of(redis, degraded, seen).admit(a_tenant(), [LOOKUP])
        assert admitted == (a_tenant(), {})
        assert degraded.count == 0
        assert seen in ([False], [True])  # an entry that is none of ours may count as empty

    async def test_is_away_with_redis(self, tmp_path: Path, degraded: Degraded) -> None:
        client = connect(f"unix://{tmp_path}/nobody.sock")
        seen: list[bool] = []
        admitted = await admission_of(client, degraded, seen).admit(a_tenant(), [LOOKUP])
        assert admitted == (a_tenant(), {})
        assert (degraded.count, seen) == (1, [False])
        await client.aclose()

    async def test_is_not_asked_for_nothing(self, redis: Redis, degraded: Degraded) -> None:
        await put(redis, a_tenant())
        seen: list[bool] = []
        await admission_of(redis, degraded, seen).admit(a_tenant(), [])
        assert seen == []


class SlowRedis:
    """Speaks just enough of the protocol to answer look-ups of a tenant, each when its gate opens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.gates: dict[str, asyncio.Event] = {}
        self.asked: list[bytes] = []
        self.reached = asyncio.Event()
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self) -> SlowRedis:
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    def gate(self, tenant_id: str) -> asyncio.Event:
        return self.gates.setdefault(tenant_id, asyncio.Event())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.asked.append(data)
            self.reached.set()
            tenant_id = data.split(b"\r\n")[-2].decode()
            await self.gate(tenant_id).wait()
            record = msgspec.json.encode(a_tenant(tenant_id))
            writer.write(b"$%d\r\n%s\r\n" % (len(record), record))
        writer.close()

    async def stop(self) -> None:
        for gate in self.gates.values():
            gate.set()
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[SlowRedis]:
    server = await SlowRedis(tmp_path / "slow.sock").start()
    yield server
    await server.stop()


@pytest.fixture
async def to_slow(slow: SlowRedis, tmp_path: Path) -> AsyncIterator[Redis]:
    client = connect(f"unix://{tmp_path}/slow.sock")
    yield client
    await client.aclose()


class TestRedis:
    async def test_is_asked_once(self, slow: SlowRedis, to_slow: Redis, degraded: Degraded) -> None:
        slow.gate("acme").set()
        await admission_of(to_slow, degraded).admit(a_tenant())
        assert len(slow.asked) == 1
        assert slow.asked[0].count(b"HGET") == 1

    async def test_that_is_silent_is_waited_for_briefly_and_the_tenant_let_in(
        self, slow: SlowRedis, to_slow: Redis, degraded: Degraded, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The call's own limit counts, whatever the connection's is."""
        monkeypatch.setattr("cluster.admission.CALL_TIMEOUT_S", 0.02)
        to_slow.connection_pool.connection_kwargs["socket_timeout"] = None
        async with asyncio.timeout(5):
            admitted = await admission_of(to_slow, degraded).admit(a_tenant(tier="free"))
        assert admitted.tenant == a_tenant(tier="free")
        assert degraded.count == 1

    async def test_that_is_away_lets_the_tenant_in_as_the_key_had_it(
        self, tmp_path: Path, degraded: Degraded
    ) -> None:
        client = connect(f"unix://{tmp_path}/nobody.sock")
        assert (await admission_of(client, degraded).admit(a_tenant())).tenant == a_tenant()
        assert degraded.count == 1
        await client.aclose()

    @pytest.mark.parametrize("end", ["the call's time runs out", "the client leaves"])
    async def test_s_late_answer_is_nobody_else_s(
        self,
        slow: SlowRedis,
        to_slow: Redis,
        degraded: Degraded,
        monkeypatch: pytest.MonkeyPatch,
        end: str,
    ) -> None:
        admission = admission_of(to_slow, degraded)
        slow.gate("other").set()
        if end == "the client leaves":
            task = asyncio.ensure_future(admission.admit(a_tenant("acme")))
            await slow.reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with monkeypatch.context() as shorter:
                shorter.setattr("cluster.admission.CALL_TIMEOUT_S", 0.02)
                await admission.admit(a_tenant("acme"))
        slow.gate("acme").set()
        assert (await admission.admit(a_tenant("other"))).tenant.tenant_id == "other"
