"""What is there, is not wanted, and can go: keys, then tenants, then tiers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cluster.admin_cli.actions import Action, Kept, Kind
from cluster.admin_cli.directory import Known, WantedDirectory
from tenants.tier import BUILT_IN, Tier

_BUILT_IN = frozenset(tier.name for tier in BUILT_IN)


class Own(NamedTuple):
    """The caller's: without these it could not come back."""

    keys: frozenset[str]
    tenants: frozenset[str]


def own_of(there: Known, hint: str) -> Own:
    """By the hint of the caller's key; another admin key with the same hint is spared as well."""
    keys = [key for key in there.keys if key.hint == hint and "admin" in key.scopes]
    return Own(frozenset(key.key_id for key in keys), frozenset(key.tenant_id for key in keys))


def pruned(wanted: WantedDirectory, there: Known, own: Own) -> Iterator[Action | Kept]:
    yield from _keys(wanted, there, own)
    yield from _tenants(wanted, there, own)
    yield from _tiers(wanted, there, own)


def _keys(wanted: WantedDirectory, there: Known, own: Own) -> Iterator[Action | Kept]:
    """Of tenants that stay; the others take theirs along."""
    for key in there.keys:
        tenant = (wanted.tenants or {}).get(key.tenant_id)
        if tenant is not None and tenant.keys is not None and key.name not in tenant.keys:
            label = f"{key.tenant_id}/{key.name or key.key_id}"
            yield _end("key", label, key.key_id, key.version, is_own=key.key_id in own.keys)


def _tenants(wanted: WantedDirectory, there: Known, own: Own) -> Iterator[Action | Kept]:
    for name in sorted(_unwanted_tenants(wanted, there)):
        yield _end("tenant", name, name, there.tenants[name].version, is_own=name in own.tenants)


def _tiers(wanted: WantedDirectory, there: Known, own: Own) -> Iterator[Action | Kept]:
    if wanted.tiers is None:
        return
    users = {tenant.tier: name for name, tenant in (wanted.tenants or {}).items()}
    gone = _unwanted_tenants(wanted, there) - own.tenants
    for name in there.tenants.keys() - gone - (wanted.tenants or {}).keys():
        users[there.tenants[name].tier] = name
    for name in sorted(there.tiers.keys() - wanted.tiers.keys()):
        yield _end_of_tier(there.tiers[name], users.get(name))


def _unwanted_tenants(wanted: WantedDirectory, there: Known) -> set[str]:
    return set() if wanted.tenants is None else set(there.tenants.keys() - wanted.tenants.keys())


def _end(kind: Kind, label: str, target: str, version: int, *, is_own: bool) -> Action | Kept:
    if is_own:
        return Kept(kind, label, "it is the caller's own")
    return Action(verb="delete", kind=kind, label=label, target=target, version=version)


def _end_of_tier(tier: Tier, user: str | None) -> Action | Kept:
    if tier.name in _BUILT_IN:
        return Kept("tier", tier.name, "it is built in")
    if user is not None:
        return Kept("tier", tier.name, f"tenant {user} is of it")
    return Action(verb="delete", kind="tier", label=tier.name, target=tier.name, version=tier.version)
