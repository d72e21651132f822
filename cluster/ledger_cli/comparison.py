"""Whether engine = ledger = usage = metrics, and what explains where they are not.

The spools are compared with what was read before and after them: where nothing moved meanwhile the two
are one number, and the spools must say the same; under traffic they must lie between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from cluster.ledger_cli.evidence import Evidence, GatewayReading, TenantDay
from cluster.tenant_metrics import OTHER
from tenants.ledger.usage import Sums

Check = Literal["usage", "metrics", "engine"]
State = Literal["equal", "in_doubt", "different"]
NOTHING = Sums()


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One number, told twice."""

    check: Check
    tenant: str | None
    where: str
    """The day, the gateway, or `all replicas`."""
    figure: str
    spooled: int
    """By the spools; of the engines' tokens: with those that gateways threw away."""
    low: int
    """By the other side, before; `high`: after."""
    high: int
    state: State


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Why two numbers may differ and nobody can tell."""

    what: str
    request_id: str | None = None
    tenant: str | None = None
    gateway: str | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[ComparisonRow, ...]
    in_doubt: tuple[Doubt, ...]

    @property
    def differences(self) -> tuple[ComparisonRow, ...]:
        return tuple(row for row in self.rows if row.state == "different")


def compare(evidence: Evidence) -> Verdict:
    rows = (*_usage(evidence), *_metrics(evidence), *_engine(evidence))
    return Verdict(rows=rows, in_doubt=tuple(_doubts(evidence)))


def _usage(evidence: Evidence) -> Iterator[ComparisonRow]:
    spooled = evidence.spooled.by_day
    before, after = evidence.before.usage, evidence.after.usage
    is_damaged, unwritten = bool(evidence.spooled.corrupt), _unwritten(evidence)
    for tenant, day in sorted({*spooled, *before, *after}):
        if evidence.first_day <= day <= evidence.last_day:
            key = (tenant, day)
            yield from _rows(
                "usage",
                tenant,
                day,
                spooled.get(key, NOTHING),
                before.get(key, NOTHING),
                after.get(key, NOTHING),
                is_damaged or key in unwritten,
            )


def _unwritten(evidence: Evidence) -> dict[TenantDay, int]:
    """Requests that only the ledger has, where a gateway may have died between it and its spool."""
    if not evidence.gone.gateways:
        return {}
    usage, spooled = evidence.before.usage, evidence.spooled.by_day
    missing = {key: sums.requests - spooled.get(key, NOTHING).requests for key, sums in usage.items()}
    return {
        (tenant, day): count
        for (tenant, day), count in missing.items()
        if count > 0 and evidence.first_day <= day <= evidence.last_day
    }


def _metrics(evidence: Evidence) -> Iterator[ComparisonRow]:
    for gateway, after in sorted(evidence.after.gateways.items()):
        before = evidence.before.gateways.get(gateway)
        labels = {*after.tenants, *(before.tenants if before else ())}
        spooled = _labelled(evidence.spooled.by_gateway.get(gateway, {}), labels)
        is_damaged = any(place.startswith(f"{gateway}/") for place in evidence.spooled.corrupt)
        for label in sorted({*spooled, *labels}):
            yield from _rows(
                "metrics",
                label,
                gateway,
                spooled.get(label, NOTHING),
                before.tenants.get(label, NOTHING) if before else NOTHING,
                after.tenants.get(label, NOTHING),
                is_damaged,
            )


def _labelled(tenants: Mapping[str, Sums], labels: set[str]) -> dict[str, Sums]:
    """Tenants without a label of their own are `other`, if there is that."""
    folded: dict[str, Sums] = {}
    for tenant, sums in tenants.items():
        label = OTHER if tenant not in labels and OTHER in labels else tenant
        folded[label] = folded.get(label, NOTHING).plus(sums)
    return folded


def _rows(
    check: Check, tenant: str, where: str, spooled: Sums, before: Sums, after: Sums, is_lossy: bool
) -> Iterator[ComparisonRow]:
    figures = zip(Sums._fields, spooled, before, after, strict=True)
    for figure, told, low, high in figures:
        state: State = "equal" if low <= told <= high else "different"
        if told < low and is_lossy:
            state = "in_doubt"
        yield ComparisonRow(
            check=check,
            tenant=tenant,
            where=where,
            figure=figure,
            spooled=told,
            low=low,
            high=high,
            state=state,
        )


def _engine(evidence: Evidence) -> Iterator[ComparisonRow]:
    """Σ tokens that living replicas made = Σ completion tokens of this cluster's gateways + discarded."""
    readings = (evidence.before, evidence.after)
    if not evidence.after.engines:
        return
    gateways = {*evidence.after.gateways, *evidence.gone.gateways}
    answered = sum(
        sums.completion_tokens
        for gateway in gateways
        for sums in evidence.spooled.by_gateway.get(gateway, {}).values()
    ) + sum(one.completion_tokens for one in evidence.spooled.reaped if one.gateway_id in gateways)
    low, high = (sum(one.engines.values()) - _discarded(one.gateways) for one in readings)
    if low > high:  # thrown away meanwhile
        low, high = high, low
    yield ComparisonRow(
        check="engine",
        tenant=None,
        where="all replicas",
        figure="completion_tokens",
        spooled=answered,
        low=low,
        high=high,
        state=_engine_state(evidence, answered, low, high),
    )


def _discarded(gateways: Mapping[str, GatewayReading]) -> int:
    return sum(gateway.discarded_tokens for gateway in gateways.values())


def _engine_state(evidence: Evidence, answered: int, low: int, high: int) -> State:
    if low <= answered <= high:
        return "equal"
    lost_links = sum(gateway.lost_links for gateway in evidence.after.gateways.values())
    num_running = max(evidence.before.num_running, evidence.after.num_running)
    if answered > high:
        is_explained = bool(evidence.gone.replicas)
    else:
        is_explained = bool(evidence.gone.gateways or evidence.spooled.corrupt or lost_links or num_running)
    return "in_doubt" if is_explained else "different"


def _doubts(evidence: Evidence) -> Iterator[Doubt]:
    for one in evidence.spooled.reaped:
        yield Doubt(
            what="settled at its last renewal, for its gateway died",
            request_id=one.request_id,
            tenant=one.tenant_id,
            gateway=one.gateway_id,
        )
    for place in evidence.spooled.corrupt:
        yield Doubt(what=f"a damaged line: {place}", gateway=place.partition("/")[0])
    for (tenant, day), count in sorted(_unwritten(evidence).items()):
        yield Doubt(
            what=f"requests of {day} that are in no spool, {count} of them: perhaps a gateway that is gone "
            "charged them and died before it wrote them down",
            tenant=tenant,
        )
    for gateway in sorted(evidence.gone.gateways):
        yield Doubt(what="this gateway is gone, and its counters with it", gateway=gateway)
    for replica in sorted(evidence.gone.replicas):
        yield Doubt(what=f"replica {replica} is gone, and its counters with it")
    for name, reading in sorted(evidence.after.gateways.items()):
        if reading.lost_links:
            yield Doubt(
                what=f"lost {reading.lost_links} links: what their replicas told last is lost", gateway=name
            )
    if evidence.after.num_running:
        yield Doubt(what=f"{evidence.after.num_running} requests are running: not all they made is settled")
