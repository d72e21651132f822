"""The plan of `headrace apply`: what it does to any record, and what it never does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admin_cli.actions import ABSENT, Action, Change, Plan
from cluster.admin_cli.changes import key_fields
from cluster.admin_cli.directory import Known, KnownKey, WantedDirectory, WantedKey, WantedTenant
from cluster.admin_cli.plan import PlanError, make_plan
from tenants.tenant import Tenant
from tenants.terms import Limits, Terms
from tenants.tier import FREE, Tier

OWN = "mine"
OPERATOR = KnownKey(key_id="key_own", tenant_id="ops", name="op", scopes=("admin",), hint=OWN)

some_terms = st.sampled_from([Terms(), Terms(weight=3), Terms(budget_day=0), Terms(weight=3, models=("a",))])
some_overrides = st.sampled_from(
    [{}, {"budget_day": None}, {"max_concurrency": 1, "budget_day": 5}, {"models": ["a", "b"]}]
)
some_limits = st.sampled_from([None, Limits(), Limits(requests_per_min=7)])
some_addresses = st.sampled_from([(), ("10.0.0.0/8",), ("::1", "10.1.2.3/8"), ("10.1.2.3/8", "::1/128")])
some_scopes = st.sampled_from(
    [("inference",), ("metrics", "inference"), ("inference", "metrics"), ("admin",)]
)
TIERS = ("free", "gold", "old")
TENANTS = ("acme", "beta", "gone")


@st.composite
def records(draw: st.DrawFn) -> Known:
    """Any consistent record in which the operator's tenant and key are."""
    names = draw(st.sets(st.sampled_from(TIERS))) | {"free"}
    tiers = {name: Tier(name=name, terms=draw(some_terms), version=draw(st.just(7))) for name in names}
    ids = [*draw(st.sets(st.sampled_from(TENANTS))), "ops"]
    tenants = {tenant_id: draw(known_tenants(tenant_id, sorted(names))) for tenant_id in ids}
    tenants["ops"] = msgspec.structs.replace(tenants["ops"], disabled=False)
    num_keys = draw(st.integers(0, 5))
    keys = [draw(known_keys(f"key_{number}", ids)) for number in range(num_keys)]
    return Known(tiers=tiers, tenants=tenants, keys=(OPERATOR, *keys))


def known_tenants(tenant_id: str, tiers: list[str]) -> st.SearchStrategy[Tenant]:
    return st.builds(
        Tenant,
        tenant_id=st.just(tenant_id),
        name=st.sampled_from(["A", "B"]),
        tier=st.sampled_from(tiers),
        created_at=st.just(1.0),
        disabled=st.booleans(),
        overrides=some_overrides,
        version=st.just(7),
    )


def known_keys(key_id: str, tenants: list[str]) -> st.SearchStrategy[KnownKey]:
    return st.builds(
        KnownKey,
        key_id=st.just(key_id),
        tenant_id=st.sampled_from(tenants),
        name=st.sampled_from(["", "ci", "app"]),
        scopes=some_scopes,
        hint=st.sampled_from(["wxyz", OWN]),
        limits=some_limits,
        addresses=some_addresses,
        version=st.just(7),
    )


some_wanted_keys = st.none() | st.dictionaries(
    st.sampled_from(["ci", "app"]),
    st.builds(
        WantedKey,
        scopes=some_scopes,
        limits=some_limits,
        addresses=some_addresses,
        expires_in_s=st.sampled_from([None, 60]),
    ),
)


@st.composite
def wishes(draw: st.DrawFn) -> WantedDirectory:
    tiers = draw(st.none() | st.dictionaries(st.sampled_from(TIERS), some_terms))
    known = sorted({"free", *(tiers or {})})
    ids = draw(st.none() | st.sets(st.sampled_from((*TENANTS, "ops"))))
    tenants = None if ids is None else {tenant_id: draw(wanted_tenants(known)) for tenant_id in sorted(ids)}
    return WantedDirectory(tiers=tiers, tenants=tenants)


def wanted_tenants(tiers: list[str]) -> st.SearchStrategy[WantedTenant]:
    return st.builds(
        WantedTenant,
        name=st.sampled_from(["A", "B"]),
        tier=st.sampled_from(tiers),
        overrides=some_overrides,
        disabled=st.sampled_from([None, False, True]),
        keys=some_wanted_keys,
    )


def planned(wanted: WantedDirectory, there: Known, *, prune: bool) -> Plan | None:
    """None: it is refused, as it must be."""
    try:
        return make_plan(wanted, there, own_hint=OWN, prune=prune)
    except PlanError:
        assert locks_out(wanted, there)
        return None


def is_own(key: KnownKey) -> bool:
    return key.hint == OWN and "admin" in key.scopes


def locks_out(wanted: WantedDirectory, there: Known) -> bool:
    for key in filter(is_own, there.keys):
        tenant = (wanted.tenants or {}).get(key.tenant_id)
        if tenant is not None and (
            tenant.disabled
            or "admin" not in (tenant.keys or {}).get(key.name, WantedKey(scopes=("admin",))).scopes
        ):
            return True
    return False


class Record:
    """What the API does with a plan's calls: plain, and strict about what it is asked."""

    def __init__(self, there: Known) -> None:
        self.tiers, self.tenants = dict(there.tiers), dict(there.tenants)
        self.keys = {key.key_id: key for key in there.keys}

    def known(self) -> Known:
        return Known(tiers=self.tiers, tenants=self.tenants, keys=tuple(self.keys.values()))

    def carry_out(self, plan: Plan) -> Known:
        for action in plan.actions:
            getattr(self, f"{action.verb}_{action.kind}")(action)
        return self.known()

    def create_tier(self, action: Action) -> None:
        assert action.body["name"] not in self.tiers
        self.tiers[action.body["name"]] = msgspec.convert(action.body, Tier)

    def update_tier(self, action: Action) -> None:
        tier = self._current(self.tiers, action)
        terms = msgspec.convert({**msgspec.to_builtins(tier.terms), **action.body["terms"]}, Terms)
        self.tiers[tier.name] = Tier(name=tier.name, terms=terms, version=tier.version + 1)

    def delete_tier(self, action: Action) -> None:
        tier = self._current(self.tiers, action)
        assert tier.name != FREE.name
        assert all(tenant.tier != tier.name for tenant in self.tenants.values())
        del self.tiers[tier.name]

    def create_tenant(self, action: Action) -> None:
        assert action.body["tenant_id"] not in self.tenants
        assert action.body["tier"] in self.tiers
        self.tenants[action.body["tenant_id"]] = msgspec.convert({**action.body, "created_at": 2.0}, Tenant)

    def update_tenant(self, action: Action) -> None:
        tenant = self._current(self.tenants, action)
        changed = msgspec.structs.replace(tenant, **action.body, version=tenant.version + 1)
        assert changed.tier in self.tiers
        self.tenants[tenant.tenant_id] = changed

    def delete_tenant(self, action: Action) -> None:
        tenant = self._current(self.tenants, action)
        gone = [key for key in self.keys.values() if key.tenant_id == tenant.tenant_id]
        assert not any(map(is_own, gone))
        for key in gone:
            del self.keys[key.key_id]
        del self.tenants[tenant.tenant_id]

    def create_key(self, action: Action) -> None:
        assert action.body["tenant_id"] in self.tenants
        key_id = f"made_{len(self.keys)}"
        made = {**action.body, "key_id": key_id, "hint": "new!"}
        self.keys[key_id] = msgspec.convert(made, KnownKey)

    def update_key(self, action: Action) -> None:
        key = self._current(self.keys, action)
        fields = msgspec.convert({**msgspec.to_builtins(key), **action.body}, KnownKey)
        self.keys[key.key_id] = msgspec.structs.replace(fields, version=key.version + 1)

    def delete_key(self, action: Action) -> None:
        key = self._current(self.keys, action)
        assert not is_own(key)
        del self.keys[key.key_id]

    def _current(self, things: dict[str, Any], action: Action) -> Any:
        assert things[action.target].version == action.version
        return things[action.target]


def holds(wanted: WantedDirectory, record: Known) -> bool:
    tiers_hold = all(record.tiers[name].terms == terms for name, terms in (wanted.tiers or {}).items())
    return tiers_hold and all(
        tenant_holds(tenant_id, asked, record) for tenant_id, asked in (wanted.tenants or {}).items()
    )


def tenant_holds(tenant_id: str, asked: WantedTenant, record: Known) -> bool:
    tenant = record.tenants[tenant_id]
    fields_hold = (tenant.name, tenant.tier, tenant.overrides) == (asked.name, asked.tier, asked.overrides)
    is_as_said = asked.disabled is None or tenant.disabled == asked.disabled
    keys_hold = all(
        (named := [key for key in record.keys_of(tenant_id) if key.name == name])
        and all(key_fields(key) == key_fields(wish) for key in named)
        for name, wish in (asked.keys or {}).items()
    )
    return fields_hold and is_as_said and keys_hold


@given(wanted=wishes(), there=records(), prune=st.booleans())
def test_once_carried_out_what_is_wanted_is_there_and_a_second_plan_is_empty_and_nobody_is_locked_out(
    wanted: WantedDirectory, there: Known, prune: bool
) -> None:
    plan = planned(wanted, there, prune=prune)
    if plan is None:
        return
    after = Record(there).carry_out(plan)
    assert holds(wanted, after)
    second = make_plan(wanted, after, own_hint=OWN, prune=prune)
    assert second.actions == ()
    assert second.kept == plan.kept
    assert_safe(plan, after)


def assert_safe(plan: Plan, after: Known) -> None:
    """No step needs a later one, and the caller can come back."""
    order = ["tier", "tenant", "key"]
    places = [
        5 - order.index(action.kind) if action.verb == "delete" else order.index(action.kind)
        for action in plan.actions
    ]
    assert places == sorted(places)
    own = [key for key in after.keys if key.key_id == OPERATOR.key_id]
    assert [("admin" in key.scopes, after.tenants[key.tenant_id].disabled) for key in own] == [(True, False)]


@given(wanted=wishes(), there=records())
def test_without_prune_nothing_is_ever_deleted(wanted: WantedDirectory, there: Known) -> None:
    plan = planned(wanted, there, prune=False)
    if plan is None:
        return
    assert [action.verb for action in plan.actions if action.verb == "delete"] == []
    assert plan.kept == ()
    after = Record(there).carry_out(plan)
    assert set(there.tiers) <= set(after.tiers)
    assert set(there.tenants) <= set(after.tenants)
    assert {key.key_id for key in there.keys} <= {key.key_id for key in after.keys}


@given(wanted=wishes(), there=records())
def test_prune_leaves_only_what_is_wanted_kept_or_not_spoken_of(
    wanted: WantedDirectory, there: Known
) -> None:
    plan = planned(wanted, there, prune=True)
    if plan is None:
        return
    after = Record(there).carry_out(plan)
    kept = {(kept.kind, kept.label) for kept in plan.kept}
    if wanted.tiers is not None:
        assert {("tier", name) for name in after.tiers.keys() - wanted.tiers.keys()} <= kept
    if wanted.tenants is not None:
        assert {("tenant", name) for name in after.tenants.keys() - wanted.tenants.keys()} <= kept
    for tenant_id, tenant in (wanted.tenants or {}).items():
        if tenant.keys is not None:
            left = [key for key in after.keys_of(tenant_id) if key.name not in tenant.keys]
            assert {("key", f"{tenant_id}/{key.name or key.key_id}") for key in left} <= kept
    assert_untouched(wanted, plan)


def assert_untouched(wanted: WantedDirectory, plan: Plan) -> None:
    """Sections that are left out."""
    touched = {(action.kind, action.label) for action in plan.actions}
    assert wanted.tiers is not None or not any(kind == "tier" for kind, _ in touched)
    assert wanted.tenants is not None or not any(kind in ("tenant", "key") for kind, _ in touched)
    for tenant_id, tenant in (wanted.tenants or {}).items():
        if tenant.keys is None:
            assert not any(kind == "key" and label.startswith(f"{tenant_id}/") for kind, label in touched)


def a_record(**fields: Any) -> Known:
    tenants = {"ops": Tenant(tenant_id="ops", name="Ops", tier="free", created_at=1.0)}
    plain = {"tiers": {"free": FREE}, "tenants": tenants, "keys": (OPERATOR,)}
    return Known(**{**plain, **fields})


def a_tenant(**fields: Any) -> WantedTenant:
    return WantedTenant(**{"name": "Acme", "tier": "free", **fields})


def plan_of(wanted: WantedDirectory, there: Known, *, prune: bool = False) -> Plan:
    return make_plan(wanted, there, own_hint=OWN, prune=prune)


def test_a_change_is_told_field_by_field_and_sent_from_the_version_that_was_seen() -> None:
    acme = Tenant(
        tenant_id="acme",
        name="Acme",
        tier="free",
        created_at=1.0,
        overrides={"weight": 2, "burst_s": 9},
        version=7,
    )
    wanted = WantedDirectory(tenants={"acme": a_tenant(overrides={"weight": 3, "budget_day": None})})
    there = a_record(tenants={**a_record().tenants, "acme": acme})
    (action,) = plan_of(wanted, there).actions
    assert action.changes == (
        Change("overrides.weight", 2, 3),
        Change("overrides.burst_s", 9, ABSENT),
        Change("overrides.budget_day", ABSENT, None),
    )
    assert (action.verb, action.target, action.version) == ("update", "acme", 7)
    assert action.body == {"overrides": {"weight": 3, "budget_day": None}}


def test_a_frozen_tenant_stays_frozen_unless_the_file_says_otherwise() -> None:
    frozen = Tenant(tenant_id="acme", name="Acme", tier="free", created_at=1.0, disabled=True)
    there = a_record(tenants={**a_record().tenants, "acme": frozen})
    assert plan_of(WantedDirectory(tenants={"acme": a_tenant()}), there).actions == ()
    (action,) = plan_of(WantedDirectory(tenants={"acme": a_tenant(disabled=False)}), there).actions
    assert action.body == {"disabled": False}


def test_both_keys_of_a_rotation_are_changed_and_neither_is_made_again() -> None:
    old, new = (
        KnownKey(key_id=f"key_{number}", tenant_id="ops", name="ci", scopes=("inference",), hint="wxyz")
        for number in (1, 2)
    )
    tenant = a_tenant(name="Ops", keys={"ci": WantedKey(addresses=("10.1.2.3/8",))})
    plan = plan_of(WantedDirectory(tenants={"ops": tenant}), a_record(keys=(OPERATOR, old, new)))
    assert [(action.verb, action.target) for action in plan.actions] == [
        ("update", "key_1"),
        ("update", "key_2"),
    ]
    assert plan.actions[0].body == {"addresses": ["10.0.0.0/8"]}


def test_what_means_the_same_is_no_change() -> None:
    there = KnownKey(
        key_id="key_1",
        tenant_id="ops",
        name="ci",
        scopes=("metrics", "inference"),
        hint="wxyz",
        limits=Limits(),
        addresses=("10.0.0.0/8", "::1/128"),
    )
    asked = WantedKey(scopes=("inference", "metrics"), addresses=("::1", "10.1.2.3/8"), expires_in_s=60)
    tenant = a_tenant(name="Ops", keys={"ci": asked})
    plan = plan_of(
        WantedDirectory(tiers={"free": FREE.terms}, tenants={"ops": tenant}), a_record(keys=(OPERATOR, there))
    )
    assert (plan.actions, plan.num_unchanged) == ((), 3)


def test_prune_keeps_the_caller_the_built_in_tiers_and_tiers_in_use_and_says_why() -> None:
    gold = Tier(name="gold", terms=Terms())
    paying = Tenant(tenant_id="ops", name="Ops", tier="gold", created_at=1.0)
    there = a_record(tiers={"free": FREE, "gold": gold}, tenants={"ops": paying})
    plan = plan_of(WantedDirectory(tiers={}, tenants={}), there, prune=True)
    assert plan.actions == ()
    assert [(kept.kind, kept.label, kept.why) for kept in plan.kept] == [
        ("tenant", "ops", "it is the caller's own"),
        ("tier", "free", "it is built in"),
        ("tier", "gold", "tenant ops is of it"),
    ]


@pytest.mark.parametrize(
    ("tenant", "said"),
    [
        (a_tenant(tier="platinum"), "tenants.ops.tier: there is no tier platinum"),
        (a_tenant(disabled=True), "tenants.ops.disabled: this is the caller's own tenant"),
        (
            a_tenant(keys={"op": WantedKey()}),
            "tenants.ops.keys.op.scopes: the caller's own key must keep admin",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(tenant: WantedTenant, said: str) -> None:
    with pytest.raises(PlanError, match=f"^{said}$"):
        plan_of(WantedDirectory(tenants={"ops": tenant}), a_record())


def test_nothing_is_pruned_if_nobody_knows_which_key_is_the_caller_s() -> None:
    with pytest.raises(PlanError, match="nothing can be pruned safely"):
        make_plan(WantedDirectory(tenants={}), a_record(), own_hint="none", prune=True)
