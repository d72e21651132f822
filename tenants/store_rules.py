"""What may be changed in the record, and what goes with it: the rules that both stores obey.

A change is decided on what was read at one change count, and written only if that count still stands;
otherwise somebody was faster and it is decided anew. So no two changes ever mix, whoever makes them, and a
store needs to know one way of writing only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tenants.api_key import ApiKey
from tenants.audit import Actor, AuditEntry, changes_between
from tenants.directory import KEY, TENANT, TIER, Edit, Kind, Value
from tenants.store import Conflict, NotFound, StaleVersion
from tenants.tenant import Tenant, terms_of
from tenants.tier import Tier

Decide = Callable[[], Awaitable[list[Edit]]]


class StoreRules(ABC):
    """The changes and plain readings of a `TenantStore`; a subclass keeps the rows and finds keys."""

    @abstractmethod
    async def change_count(self) -> int:
        """Grows with every commit, whoever makes it."""

    @abstractmethod
    async def _get(self, kind: Kind[Value], row_id: str) -> Value | None: ...

    @abstractmethod
    async def _list(
        self, kind: Kind[Value], parent_id: str | None, after: str, limit: int | None
    ) -> list[Value]:
        """By id, those behind `after`; of one parent, or all."""

    @abstractmethod
    async def _is_hash_taken(self, key_hash: str) -> bool: ...

    @abstractmethod
    async def _commit(self, count: int, edits: Sequence[Edit], entry: AuditEntry) -> bool:
        """Writes all, and the entry under an id of its own; or nothing if the change count is not `count`."""

    async def create_tier(self, tier: Tier, by: Actor) -> None:
        await self._create(TIER, tier, by)

    async def get_tier(self, name: str) -> Tier | None:
        return await self._get(TIER, name)

    async def list_tiers(self, after: str = "", limit: int | None = None) -> list[Tier]:
        return await self._list(TIER, None, after, limit)

    async def put_tier(self, tier: Tier, version: int | None, by: Actor) -> Tier:
        return await self._put(TIER, tier, version, by)

    async def delete_tier(self, name: str, version: int | None, by: Actor) -> None:
        async def decide() -> list[Edit]:
            tier = await self._current(TIER, name, version)
            for tenant in await self._list(TENANT, name, "", 1):
                raise Conflict(f"tier {name} is in use, by tenant {tenant.tenant_id} at least")
            return [Edit(tier, None)]

        await self._change(decide, by, "tier.delete", name)

    async def create_tenant(self, tenant: Tenant, by: Actor) -> None:
        await self._create(TENANT, tenant, by)

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        return await self._get(TENANT, tenant_id)

    async def list_tenants(self, after: str = "", limit: int | None = None) -> list[Tenant]:
        return await self._list(TENANT, None, after, limit)

    async def put_tenant(self, tenant: Tenant, version: int | None, by: Actor) -> Tenant:
        return await self._put(TENANT, tenant, version, by)

    async def delete_tenant(self, tenant_id: str, version: int | None, by: Actor) -> None:
        async def decide() -> list[Edit]:
            tenant = await self._current(TENANT, tenant_id, version)
            keys = await self._list(KEY, tenant_id, "", None)
            return [Edit(tenant, None), *(Edit(key, None) for key in keys)]

        await self._change(decide, by, "tenant.delete", tenant_id)

    async def create_key(self, key: ApiKey, by: Actor) -> None:
        await self._create(KEY, key, by)

    async def get_key(self, key_id: str) -> ApiKey | None:
        return await self._get(KEY, key_id)

    async def list_keys(
        self, tenant_id: str | None = None, after: str = "", limit: int | None = None
    ) -> list[ApiKey]:
        if tenant_id is not None:
            await self._current(TENANT, tenant_id, None)
        return await self._list(KEY, tenant_id, after, limit)

    async def put_key(self, key: ApiKey, version: int | None, by: Actor) -> ApiKey:
        return await self._put(KEY, key, version, by)

    async def delete_key(self, key_id: str, version: int | None, by: Actor) -> None:
        async def decide() -> list[Edit]:
            return [Edit(await self._current(KEY, key_id, version), None)]

        await self._change(decide, by, "key.delete", key_id)

    async def _create(self, kind: Kind[Value], value: Value, by: Actor) -> None:
        row_id = kind.id_of(value)

        async def decide() -> list[Edit]:
            await self._check_parent(kind, value)
            is_taken = await self._get(kind, row_id) is not None
            if is_taken or (isinstance(value, ApiKey) and await self._is_hash_taken(value.key_hash)):
                raise Conflict(f"{kind.word} {row_id} already exists")
            return [Edit(None, value)]

        await self._change(decide, by, f"{kind.word}.create", row_id)

    async def _put(self, kind: Kind[Value], value: Value, version: int | None, by: Actor) -> Value:
        row_id = kind.id_of(value)

        async def decide() -> list[Edit]:
            current = await self._current(kind, row_id, version)
            kept = {name: getattr(current, name) for name in kind.fixed}
            after = msgspec.structs.replace(value, **kept, version=current.version + 1)
            await self._check_parent(kind, after)
            return [Edit(current, after)]

        edits = await self._change(decide, by, f"{kind.word}.update", row_id)
        after = edits[0].after
        assert isinstance(after, kind.type)
        return after

    async def _current(self, kind: Kind[Value], row_id: str, version: int | None) -> Value:
        """Raises `NotFound` or `StaleVersion`."""
        current = await self._get(kind, row_id)
        if current is None:
            raise NotFound(f"there is no {kind.word} {row_id}")
        if version not in (None, current.version):
            raise StaleVersion(f"{kind.word} {row_id} has version {current.version} now, not {version}")
        return current

    async def _check_parent(self, kind: Kind[Value], value: Value) -> None:
        """Raises `NotFound`, or `msgspec.ValidationError` if the overrides don't go with the tier."""
        if kind.parent is None:
            return
        parent = await self._current(kind.parent, kind.parent_id_of(value), None)
        if isinstance(value, Tenant):
            terms_of(parent, value.overrides)

    async def _change(self, decide: Decide, by: Actor, action: str, target: str) -> list[Edit]:
        while True:
            count = await self.change_count()
            edits = await decide()
            if await self._commit(count, edits, _entry(by, action, target, edits)):
                return edits


def _entry(by: Actor, action: str, target: str, edits: Sequence[Edit]) -> AuditEntry:
    """The first edit is what was asked for; the others are keys that go with their tenant."""
    changes = changes_between(*edits[0])
    keys = [edit.before.key_id for edit in edits[1:] if isinstance(edit.before, ApiKey)]
    if keys:
        changes["keys"] = (keys, None)
    return AuditEntry(entry_id="", at=0.0, actor=by, action=action, target=target, changes=changes)
