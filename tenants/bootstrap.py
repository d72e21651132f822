"""The first tenants and keys, so that a fresh installation can be used: `demo` and `admin`.

The record carries a mark once it was seeded. Without the mark (first start, or a lost record) the keys
of the files, or new ones, are registered; with it nothing that was deleted since comes back, and only a
lost key file is made again, with a new key. The mark is a fingerprint of the root secret, since under
another secret every key that was ever given out would be unknown, silently.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import NamedTuple

from tenants.api_key import ApiKey, Scope, hash_key, is_well_formed, new_key, new_key_id
from tenants.store import Account, NotFound, TenantStore
from tenants.tenant import Tenant
from tenants.tier import FREE

_SCOPES: dict[str, Scope] = {"demo": "inference", "admin": "admin"}


class BootstrapError(Exception):
    """The state directory and the record do not fit together; says what to do."""


class KeyFiles(NamedTuple):
    """Files that hold a key that works; None where it was deleted through the API."""

    demo: Path | None
    admin: Path | None


async def ensure_demo(store: TenantStore, secret: bytes, state_dir: Path, now: float) -> KeyFiles:
    """Makes tenants `demo` (scope inference) and `admin` (scope admin), their keys, and the key files.

    Both are of the free tier: a demo that was left in place never outranks a paying tenant. `now` is
    Unix time in seconds. Raises `BootstrapError`, or `StoreUnavailable`.
    """
    paths = {name: state_dir / f"{name}.key" for name in _SCOPES}
    on_file = {name: _read_key(path) for name, path in paths.items()}
    keys = {name: key or new_key() for name, key in on_file.items()}
    accounts = {name: _account(name, key, secret, now) for name, key in keys.items()}
    lost = [name for name, key in on_file.items() if key is None]

    mark = _fingerprint(secret)
    there = await store.seed(mark, list(accounts.values()))
    if there is not None:
        if there != mark:
            raise BootstrapError(
                "the record was made under another secret, so no key would work: start with the "
                "HEADRACE_SECRET or the state directory of then, or with an empty Redis"
            )
        lost = [name for name in lost if await _register(store, accounts[name].key)]
    for name in lost:  # registered first: a file never holds a key that was not
        _write_key(paths[name], keys[name])
    works = {name: await store.find_key(accounts[name].key.key_hash) is not None for name in _SCOPES}
    return KeyFiles(*(paths[name] if works[name] else None for name in ("demo", "admin")))


def _fingerprint(secret: bytes) -> str:
    return hmac.digest(secret, b"headrace record\0", "sha256").hex()


def _account(name: str, key: str, secret: bytes, now: float) -> Account:
    record = ApiKey(
        key_id=new_key_id(),
        tenant_id=name,
        key_hash=hash_key(secret, key),
        scopes=(_SCOPES[name],),
        hint=key[-4:],
        created_at=now,
    )
    return Account(record, Tenant(tenant_id=name, name=name.capitalize(), tier=FREE.name, created_at=now))


async def _register(store: TenantStore, key: ApiKey) -> bool:
    """Whether the tenant is still there to have the key."""
    try:
        await store.create_key(key)
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


def _write_key(path: Path, key: str) -> None:
    """Mode 0600, all or nothing, on disk when it returns."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)  # left by a crash
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{key}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
