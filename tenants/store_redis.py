"""The record in Redis: JSON values parsed by schema, each reading and each change one script.

`record_layout.py` says what lies where, `store_rules.py` what a change may do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from hmac import compare_digest
from itertools import chain
from typing import Any, TypeVar

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenants.audit import MAX_ENTRIES, Actor, AuditEntry, position
from tenants.bounded import bounded
from tenants.directory import KEY, TENANT, TIER, Edit, Kind, Value
from tenants.record_layout import (
    AUDIT_KEY,
    CHANGES_KEY,
    HASHES_KEY,
    KEYS_KEY,
    LOCK_KEY,
    MARK_KEY,
    TENANTS_KEY,
    TIERS_KEY,
    Command,
    decode_row,
    ids_key,
    rows_key,
    writes,
)
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_script import Argument, Script, ScriptCall, Scripts
from tenants.redis_trouble import unavailable
from tenants.reseed import EPOCH_KEY, LOCK_S
from tenants.snapshot import Snapshot
from tenants.store import Account, CorruptRecord, StoreUnavailable
from tenants.store_rules import Decide, StoreRules
from tenants.tenant import terms_of

_PLACE = "headrace:{directory}"
WHOLE_TIMEOUT_S = 10.0
"""For reading or writing all of the record, which nobody waits for."""

_ASK, _PAGE, _FIND_KEY, _CHANGE = (Script("tenants", name) for name in ("ask", "page", "find_key", "change"))

Answer = TypeVar("Answer")
Guard = tuple[str, str]
"""A key and the value that it must hold; `''`: it must not be there."""


class _Noted(msgspec.Struct, frozen=True, kw_only=True):
    """An `AuditEntry` as it is stored: its id is Redis', and tells the time."""

    actor: Actor
    action: str
    target: str
    changes: dict[str, tuple[Any, Any]]


class RedisTenantStore(StoreRules):
    """A `TenantStore` and `LosableRecord` over a client that someone else owns and closes.

    Every call of Redis ends within `CALL_TIMEOUT_S`, but those of all of the record. What Redis answers that
    is not ours raises `CorruptRecord`, and `StoreUnavailable("empty")` if the record is lost.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._scripts = Scripts(client, (_ASK, _PAGE, _FIND_KEY, _CHANGE), CALL_TIMEOUT_S)
        self._turn = asyncio.Lock()

    async def change_count(self) -> int:
        (count,) = await self._ask(("GET", CHANGES_KEY))
        return _count(count)

    async def find_key(self, key_hash: str) -> Account | None:
        names = (EPOCH_KEY, HASHES_KEY, KEYS_KEY, TENANTS_KEY, TIERS_KEY)
        found = await self._ask_script(_FIND_KEY, names, key_hash)
        if not found:
            return None
        key = decode_row(KEY, found[0])
        if not compare_digest(key.key_hash.encode(), key_hash.encode()):
            raise CorruptRecord(f"a value in {KEYS_KEY} belongs to another key")
        tenant, tier = decode_row(TENANT, found[1]), decode_row(TIER, found[2])
        if (key.tenant_id, tenant.tier) != (tenant.tenant_id, tier.name):
            raise CorruptRecord(f"a value in {TENANTS_KEY} or {TIERS_KEY} belongs to another id")
        try:
            return Account(key, tenant, terms_of(tier, tenant.overrides))
        except msgspec.ValidationError:
            raise CorruptRecord(f"the overrides of tenant {tenant.tenant_id} are no Terms") from None

    async def note(self, entry: AuditEntry) -> None:
        added = ("XADD", AUDIT_KEY, "MAXLEN", "~", MAX_ENTRIES, "*", "entry", _encoded(entry).decode())
        await self._ask(added)

    async def list_audit(self, before: str = "", limit: int = 100) -> list[AuditEntry]:
        if before:
            position(before)
        latest = f"({before}" if before else "+"
        (found,) = await self._ask(("XREVRANGE", AUDIT_KEY, latest, "-", "COUNT", limit))
        return [_decoded(entry_id, fields) for entry_id, fields in found]

    async def epoch(self) -> str | None:
        (epoch,) = await self._get_plain(EPOCH_KEY)
        return epoch or None

    async def mark(self) -> str | None:
        (mark,) = await self._get_plain(MARK_KEY)
        return mark or None

    async def lock(self, owner: str) -> bool:
        free = [(EPOCH_KEY, ""), (LOCK_KEY, "")]
        return await self._write(free, [("SET", LOCK_KEY, owner, "PX", round(LOCK_S * 1000))])

    async def renew(self, owner: str) -> bool:
        return await self._write([(LOCK_KEY, owner)], [("PEXPIRE", LOCK_KEY, round(LOCK_S * 1000))])

    async def restore(self, snapshot: Snapshot, owner: str) -> bool:
        there, count = await self._get_plain(MARK_KEY, CHANGES_KEY)
        commands: list[Command] = [("SET", EPOCH_KEY, secrets.token_hex(8)), ("DEL", LOCK_KEY)]
        if not there:
            commands += [("SET", MARK_KEY, snapshot.mark), *writes(snapshot.additions())]
        guards = [(LOCK_KEY, owner), (CHANGES_KEY, count)]
        return await self._write(guards, commands, snapshot.entry(), WHOLE_TIMEOUT_S)

    async def snapshot(self, now: float) -> Snapshot:
        rows = [("HVALS", rows_key(kind)) for kind in (TIER, TENANT, KEY)]
        mark, count, tiers, tenants, keys = await self._ask(
            ("GET", MARK_KEY), ("GET", CHANGES_KEY), *rows, within_s=WHOLE_TIMEOUT_S
        )
        return Snapshot(
            mark=_text(mark),
            taken_at=now,
            change_count=_count(count),
            tiers=tuple(decode_row(TIER, row) for row in tiers),
            tenants=tuple(decode_row(TENANT, row) for row in tenants),
            keys=tuple(decode_row(KEY, row) for row in keys),
        )

    async def _change(self, decide: Decide, by: Actor, action: str, target: str) -> list[Edit]:
        """One at a time in this process: else all but one of them would be decided again, and again."""
        await _bounded(self._turn.acquire(), CALL_TIMEOUT_S)
        try:
            return await super()._change(decide, by, action, target)
        finally:
            self._turn.release()

    async def _get(self, kind: Kind[Value], row_id: str) -> Value | None:
        (row,) = await self._ask(("HGET", rows_key(kind), row_id))
        return None if row is None else decode_row(kind, row)

    async def _list(
        self, kind: Kind[Value], parent_id: str | None, after: str, limit: int | None
    ) -> list[Value]:
        keys = (EPOCH_KEY, ids_key(kind, parent_id), rows_key(kind))
        first = f"({after}" if after else "-"
        rows = await self._ask_script(_PAGE, keys, first, -1 if limit is None else limit)
        return [decode_row(kind, row) for row in rows]

    async def _is_hash_taken(self, key_hash: str) -> bool:
        (there,) = await self._ask(("HEXISTS", HASHES_KEY, key_hash))
        return bool(there)

    async def _commit(self, count: int, edits: Sequence[Edit], entry: AuditEntry) -> bool:
        return await self._write([(CHANGES_KEY, str(count) if count else "")], list(writes(edits)), entry)

    async def _get_plain(self, *keys: str) -> list[str]:
        """Values of keys that are read whether or not the record is whole; `''` for what is not there."""
        values: list[Any] = await _bounded(self._client.mget(keys), CALL_TIMEOUT_S)
        return [_text(value) for value in values]

    async def _ask(self, *commands: Command, within_s: float | None = None) -> list[Any]:
        keys = (EPOCH_KEY, *(str(command[1]) for command in commands))
        return await self._ask_script(_ASK, keys, _packed(commands), within_s=within_s)

    async def _ask_script(
        self, script: Script, keys: tuple[str, ...], *args: Argument, within_s: float | None = None
    ) -> list[Any]:
        answer = await self._run(script, keys, *args, within_s=within_s)
        if answer is None:
            raise StoreUnavailable("Redis came back empty", "empty")
        assert isinstance(answer, list)
        return answer

    async def _write(
        self,
        guards: Sequence[Guard],
        commands: Sequence[Command],
        entry: AuditEntry | None = None,
        within_s: float | None = None,
    ) -> bool:
        named = {str(name) for _, name, *_ in chain(((None, name) for name, _ in guards), commands)}
        keys = (CHANGES_KEY, AUDIT_KEY, *sorted(named))
        args = (_packed(guards), _packed(commands), b"" if entry is None else _encoded(entry), MAX_ENTRIES)
        return await self._run(_CHANGE, keys, *args, within_s=within_s) == 1

    async def _run(
        self, script: Script, keys: tuple[str, ...], *args: Argument, within_s: float | None = None
    ) -> object:
        running = self._scripts.run([ScriptCall(script, keys, args)])
        (answer,) = await _bounded(running, CALL_TIMEOUT_S if within_s is None else within_s)
        if isinstance(answer, RedisError):
            raise unavailable(answer, _PLACE) from answer
        return answer


async def _bounded(call: Awaitable[Answer], limit_s: float) -> Answer:
    """The call's answer. One deadline covers connecting, waiting for a connection and the answer."""
    try:
        async with bounded(limit_s):
            return await call
    except (RedisError, OSError) as error:
        raise unavailable(error, _PLACE) from error


def _packed(rows: Sequence[Guard] | Sequence[Command]) -> bytes:
    return msgspec.msgpack.encode(rows)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def _count(value: bytes | None) -> int:
    try:
        return 0 if value is None else int(value)
    except ValueError:
        raise CorruptRecord(f"{CHANGES_KEY} is no number") from None


def _encoded(entry: AuditEntry) -> bytes:
    noted = _Noted(actor=entry.actor, action=entry.action, target=entry.target, changes=entry.changes)
    return msgspec.json.encode(noted)


def _decoded(entry_id: bytes, fields: Sequence[bytes]) -> AuditEntry:
    try:
        noted = msgspec.json.decode(dict(zip(fields[::2], fields[1::2], strict=True))[b"entry"], type=_Noted)
    except (KeyError, msgspec.DecodeError, RecursionError):
        raise CorruptRecord(f"an entry of {AUDIT_KEY} is no AuditEntry") from None
    entry = entry_id.decode()
    return AuditEntry(entry_id=entry, at=position(entry)[0] / 1000, **msgspec.structs.asdict(noted))
