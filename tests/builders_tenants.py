"""Tenants, keys and a clock for tests: what a test does not name has a plain default."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tenants.api_key import ApiKey, hash_key, new_key
from tenants.audit import Actor
from tenants.reseed import LosableRecord
from tenants.snapshot import first_contents
from tenants.store import Account
from tenants.tenant import Tenant, terms_of
from tenants.terms import Terms
from tenants.tier import BUILT_IN, Tier

SECRET = b"a secret for tests"
BY = Actor("admin", "key_00000000000000ff")
"""Who makes the changes of tests."""


@dataclass
class FakeClock:
    """Unix time, moved by hand."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def a_tier(name: str = "gold", **terms: Any) -> Tier:
    return Tier(name=name, terms=Terms(**terms))


def a_tenant(tenant_id: str = "acme", **fields: Any) -> Tenant:
    return Tenant(**{"tenant_id": tenant_id, "name": "Acme", "tier": "paid", "created_at": 1.0} | fields)


def a_key(number: int = 1, **fields: Any) -> ApiKey:
    """The record of a key whose id and hash follow from `number`."""
    plain = {
        "key_id": f"key_{number:016x}",
        "tenant_id": "acme",
        "key_hash": f"{number:064x}",
        "scopes": ("inference",),
        "hint": "wxyz",
        "created_at": float(number),
    }
    return ApiKey(**plain | fields)


def an_account(key: ApiKey | None = None, tenant: Tenant | None = None) -> Account:
    """With the terms of a built-in tier."""
    tenant = tenant or a_tenant()
    tier = next(tier for tier in BUILT_IN if tier.name == tenant.tier)
    return Account(key or a_key(), tenant, terms_of(tier, tenant.overrides))


def a_real_key(number: int = 1, **fields: Any) -> tuple[str, ApiKey]:
    """A key as its holder has it, and its record under `SECRET`."""
    key = new_key()
    return key, a_key(number, key_hash=hash_key(SECRET, key), hint=key[-4:], **fields)


async def seed(
    record: LosableRecord, accounts: Sequence[tuple[ApiKey, Tenant]] = (), mark: str = "mark"
) -> None:
    """Makes an empty record whole: the built-in tiers, and `accounts`."""
    assert await record.lock("a test")
    assert await record.restore(first_contents(mark, 0.0, BUILT_IN, accounts), "a test")


def switched_off(tenant: Tenant) -> Tenant:
    return msgspec.structs.replace(tenant, disabled=True)
