"""From what is wanted and what is there to what has to be done, in an order that is safe at each step. Pure.

Tiers first, then tenants, then keys; deletions last and the other way round. Only what the file names is
made or changed. What it does not name is deleted only by `prune`, only of a section that the file has, and
never if that would lock the caller out, take a tier from a tenant, or remove a built-in tier.

A key is known by its name in its tenant. Several of one name, as a rotation leaves them for a while, are
all brought to what is wanted. A key that is there is never made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cluster.admin_cli.actions import Action, Change, Kept, Kind, Note, Plan
from cluster.admin_cli.changes import changes_between, flat, key_fields, only_changed
from cluster.admin_cli.directory import Known, WantedDirectory, as_json
from cluster.admin_cli.prune import Own, own_of, pruned


class PlanError(ValueError):
    """What is wanted cannot be, or would lock its caller out. Names the place."""


def make_plan(wanted: WantedDirectory, there: Known, *, own_hint: str, prune: bool = False) -> Plan:
    """`own_hint` are the last characters of the caller's key, by which the record knows it.

    Raises `PlanError`. Carried out, the plan leaves nothing for a second one to do.
    """
    own = own_of(there, own_hint)
    if prune and not own.keys:
        raise PlanError("the caller's own key is not in the record, so nothing can be pruned safely")
    _check(wanted, there, own)
    steps = [*_tiers(wanted, there), *_tenants(wanted, there), *_keys(wanted, there)]
    ends = list(pruned(wanted, there, own)) if prune else []
    return Plan(
        actions=tuple(step for step in (*steps, *ends) if isinstance(step, Action)),
        num_unchanged=sum(step is None for step in steps),
        kept=tuple(end for end in ends if isinstance(end, Kept)),
        notes=tuple(_notes(wanted, there)),
    )


def _check(wanted: WantedDirectory, there: Known, own: Own) -> None:
    tiers = {*there.tiers, *(wanted.tiers or {})}
    for tenant_id, tenant in (wanted.tenants or {}).items():
        if tenant.tier not in tiers:
            raise PlanError(f"tenants.{tenant_id}.tier: there is no tier {tenant.tier}")
        if tenant.disabled and tenant_id in own.tenants:
            raise PlanError(f"tenants.{tenant_id}.disabled: this is the caller's own tenant")
        for key in there.keys_of(tenant_id):
            asked = (tenant.keys or {}).get(key.name)
            if key.key_id in own.keys and asked is not None and "admin" not in asked.scopes:
                place = f"tenants.{tenant_id}.keys.{key.name}.scopes"
                raise PlanError(f"{place}: the caller's own key must keep admin")


def _tiers(wanted: WantedDirectory, there: Known) -> Iterator[Action | None]:
    for name, terms in (wanted.tiers or {}).items():
        found, after = there.tiers.get(name), as_json(terms)
        if found is None:
            yield _create("tier", name, name, after, {"name": name, "terms": after})
        else:
            changes = changes_between(as_json(found.terms), after)
            yield _update("tier", name, name, changes, {"terms": after}, found.version)


def _tenants(wanted: WantedDirectory, there: Known) -> Iterator[Action | None]:
    for tenant_id, asked in (wanted.tenants or {}).items():
        found = there.tenants.get(tenant_id)
        body = {"name": asked.name, "tier": asked.tier, "overrides": as_json(asked.overrides)}
        if asked.disabled is not None and (found is not None or asked.disabled):
            body["disabled"] = asked.disabled
        if found is None:
            yield _create("tenant", tenant_id, tenant_id, flat(body), {"tenant_id": tenant_id, **body})
        else:
            before = {field: value for field, value in as_json(found).items() if field in body}
            changes = changes_between(flat(before), flat(body))
            yield _update("tenant", tenant_id, tenant_id, changes, only_changed(body, changes), found.version)


def _keys(wanted: WantedDirectory, there: Known) -> Iterator[Action | None]:
    for tenant_id, tenant in (wanted.tenants or {}).items():
        for name, asked in (tenant.keys or {}).items():
            label, after = f"{tenant_id}/{name}", key_fields(asked)
            found = [key for key in there.keys_of(tenant_id) if key.name == name]
            for key in found:
                changes = changes_between(flat(key_fields(key)), flat(after))
                yield _update("key", label, key.key_id, changes, only_changed(after, changes), key.version)
            if not found:
                made = after if asked.expires_in_s is None else {**after, "expires_in_s": asked.expires_in_s}
                yield _create("key", label, "", flat(made), {"tenant_id": tenant_id, "name": name, **made})


def _notes(wanted: WantedDirectory, there: Known) -> Iterator[Note]:
    """`expires_in` counts when a key is made: of one that is there, what it says otherwise is not done.

    A key that was rotated has only its overlap left, whatever it was made with.
    """
    for tenant_id, tenant in (wanted.tenants or {}).items():
        for key in there.keys_of(tenant_id):
            asked = (tenant.keys or {}).get(key.name)
            if asked is None or asked.expires_in_s is None or key.rotated_to is not None:
                continue
            if not key.was_made_to_live(asked.expires_in_s):
                text = "expires_in counts when a key is made and changes nothing now: see `headrace key set`"
                yield Note("key", f"{tenant_id}/{key.name}", key.key_id, text)


def _create(kind: Kind, label: str, target: str, fields: Mapping[str, Any], body: dict[str, Any]) -> Action:
    changes = changes_between({}, fields)
    return Action(verb="create", kind=kind, label=label, target=target, changes=changes, body=body)


def _update(
    kind: Kind, label: str, target: str, changes: tuple[Change, ...], body: dict[str, Any], version: int
) -> Action | None:
    """None: there is nothing to change."""
    if not changes:
        return None
    return Action(
        verb="update", kind=kind, label=label, target=target, changes=changes, body=body, version=version
    )
