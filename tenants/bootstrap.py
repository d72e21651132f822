"""The first tiers, tenants and keys, so that a fresh installation can be used: `demo` and `admin`.

A record that is not there (first start, or Redis lost it) is written from the copy in the state directory,
else with the built-in tiers and the keys of the files, or new ones. In one that is there nothing that was
deleted since comes back, and only a lost key file is made again, with a new key.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from tenants.api_key import ApiKey, Scope, hash_key, is_well_formed, new_key, new_key_id
from tenants.audit import LAUNCHER
from tenants.private_file import write_private
from tenants.reseed import LosableRecord, Rebuild, make_whole, mark_of
from tenants.snapshot import Snapshot, first_contents
from tenants.snapshot_file import FILE_NAME, SnapshotError, read_snapshot
from tenants.store import NotFound, TenantStore
from tenants.tenant import Tenant
from tenants.tier import BUILT_IN, FREE

_SCOPES: dict[str, Scope] = {"demo": "inference", "admin": "admin"}


class BootstrapError(Exception):
    """The state directory and the record do not fit together; says what to do."""


class KeyFiles(NamedTuple):
    """Files that hold a key that works; None where it was deleted through the API."""

    demo: Path | None
    admin: Path | None


async def _nothing() -> None:
    """There is nothing to rebuild."""


class WholeRecord(TenantStore, LosableRecord, Protocol):
    """All of it."""


async def ensure_demo(
    store: WholeRecord, secret: bytes, state_dir: Path, now: float, rebuild: Rebuild = _nothing
) -> KeyFiles:
    """Makes tenants `demo` (scope inference) and `admin` (scope admin), their keys, and the key files.

    Both are of the free tier: a demo that was left in place never outranks a paying tenant. `now` is
    Unix time in seconds. `rebuild` is called for a record that is not whole, first of all.
    Raises `BootstrapError`, or `StoreUnavailable`.
    """
    paths = {name: state_dir / f"{name}.key" for name in _SCOPES}
    on_file = {name: _read_key(path) for name, path in paths.items()}
    keys = {name: key or new_key() for name, key in on_file.items()}
    accounts = {name: _account(name, key, secret, now) for name, key in keys.items()}

    mark = mark_of(secret)
    await _check_mark(store, mark)
    first = first_contents(mark, now, BUILT_IN, list(accounts.values()))
    written = await _make_whole(store, state_dir / FILE_NAME, first, rebuild)
    await _check_mark(store, mark)  # of two who start at once on one empty record one wrote it

    lost = [name for name, key in on_file.items() if key is None]
    if written is not first:
        lost = [name for name in lost if await _register(store, accounts[name][0])]
    for name in lost:  # registered first: a file never holds a key that was not
        write_private(paths[name], f"{keys[name]}\n".encode())
    works = {name: await store.find_key(key.key_hash) is not None for name, (key, _) in accounts.items()}
    return KeyFiles(*(paths[name] if works[name] else None for name in ("demo", "admin")))


async def _make_whole(store: WholeRecord, path: Path, first: Snapshot, rebuild: Rebuild) -> Snapshot | None:
    """What was written: the copy of a record that was lost, or the first contents of one that never was."""
    if await store.epoch() is not None:
        return None
    try:
        contents = read_snapshot(path, first.mark) or first
    except SnapshotError as error:
        raise BootstrapError(
            f"the record is lost and {error}: put another copy in its place, or remove it to start anew "
            "without the tenants that are in it"
        ) from None
    return await make_whole(store, contents, rebuild)


async def _check_mark(store: WholeRecord, mark: str) -> None:
    if await store.mark() not in (None, mark):
        raise BootstrapError(
            "the record was made under another secret, so no key would work: start with the "
            "HEADRACE_SECRET or the state directory of then, or with an empty Redis"
        )


def _account(name: str, key: str, secret: bytes, now: float) -> tuple[ApiKey, Tenant]:
    record = ApiKey(
        key_id=new_key_id(),
        tenant_id=name,
        key_hash=hash_key(secret, key),
        scopes=(_SCOPES[name],),
        hint=key[-4:],
        created_at=now,
    )
    return record, Tenant(tenant_id=name, name=name.capitalize(), tier=FREE.name, created_at=now)


async def _register(store: WholeRecord, key: ApiKey) -> bool:
    """Whether the tenant is still there to have the key."""
    try:
        await store.create_key(key, LAUNCHER)
    except NotFound:
        return False
    return True


def _read_key(path: Path) -> str | None:
    try:
        key = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BootstrapError(f"{path} cannot be read ({type(error).__name__})") from error
    if not is_well_formed(key):
        raise BootstrapError(f"{path} holds no key of ours: remove it, and a new one is made")
    return key
