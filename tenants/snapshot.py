"""A copy of the whole record, from which one that Redis lost is written anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tenants.api_key import ApiKey
from tenants.audit import LAUNCHER, AuditEntry
from tenants.directory import Edit, additions
from tenants.tenant import Tenant
from tenants.tier import Tier


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole record as it was at one moment."""

    mark: str
    taken_at: float
    """Unix seconds, by the clock of who took it."""
    change_count: int
    """0: of no record, but the first contents of one."""
    tiers: tuple[Tier, ...]
    tenants: tuple[Tenant, ...]
    keys: tuple[ApiKey, ...]

    def holds_together(self) -> bool:
        """Every tenant has its tier, every key its tenant, and nothing is there twice."""
        tiers = [tier.name for tier in self.tiers]
        tenants = [tenant.tenant_id for tenant in self.tenants]
        key_ids = [key.key_id for key in self.keys]
        hashes = [key.key_hash for key in self.keys]
        return (
            all(len(set(names)) == len(names) for names in (tiers, tenants, key_ids, hashes))
            and {tenant.tier for tenant in self.tenants} <= set(tiers)
            and {key.tenant_id for key in self.keys} <= set(tenants)
        )

    def additions(self) -> list[Edit]:
        return additions([*self.tiers, *self.tenants, *self.keys])

    def entry(self) -> AuditEntry:
        """Of its being written into an empty record."""
        action = "record.restore" if self.change_count else "record.seed"
        counts = {
            "taken_at": self.taken_at,
            "tiers": len(self.tiers),
            "tenants": len(self.tenants),
            "keys": len(self.keys),
        }
        changes = {name: (None, value) for name, value in counts.items()}
        return AuditEntry(
            entry_id="", at=0.0, actor=LAUNCHER, action=action, target="record", changes=changes
        )


def first_contents(
    mark: str, now: float, tiers: Iterable[Tier], accounts: Sequence[tuple[ApiKey, Tenant]]
) -> Snapshot:
    """What a record that never was begins with."""
    return Snapshot(
        mark=mark,
        taken_at=now,
        change_count=0,
        tiers=tuple(tiers),
        tenants=tuple({tenant.tenant_id: tenant for _, tenant in accounts}.values()),
        keys=tuple(key for key, _ in accounts),
    )
