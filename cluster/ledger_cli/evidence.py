"""What `headrace ledger verify` has seen: the spools, and everything else once before and once after them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from tenants.ledger.settlement import Settlement
from tenants.ledger.usage import Sums, sums_of
from tenants.spool.reading import utc_day

TenantDay = tuple[str, str]


class GatewayReading(msgspec.Struct, frozen=True, kw_only=True):
    """A living gateway's own counters since its start."""

    tenants: Mapping[str, Sums]
    """By the label: tenants beyond the bound of labels are `other`. `requests` are
    all that were settled but `unserved`."""
    discarded_tokens: int
    """Made by engines, and in no answer."""
    lost_links: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at everything but the spools."""

    usage: Mapping[TenantDay, Sums]
    gateways: Mapping[str, GatewayReading]
    engines: Mapping[str, int]
    """Replica → tokens that it has generated."""
    num_running: int
    """Requests in the engines: part of what these made is in no settlement yet."""


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """What the spools say, each request once."""

    by_day: Mapping[TenantDay, Sums]
    by_gateway: Mapping[str, Mapping[str, Sums]]
    """What each gateway settled itself, by tenant. `requests` are
    all lines but `unserved`."""
    reaped: tuple[Settlement, ...]
    """Never corrected by their own gateway."""
    corrupt: tuple[str, ...]
    """Places of damaged lines: `<gateway>/<day>.jsonl, byte <n>: …`."""


class Gone(msgspec.Struct, frozen=True):
    """Processes of this cluster whose counters nobody can read any more."""

    gateways: frozenset[str] = frozenset()
    replicas: frozenset[str] = frozenset()


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    first_day: str
    last_day: str
    before: Reading
    spooled: Spooled
    after: Reading
    gone: Gone = Gone()


def spooled_from(settlements: Iterable[Settlement], corrupt: Iterable[str]) -> Spooled:
    """`corrupt` is read last: it fills while the settlements are read."""
    by_day: defaultdict[TenantDay, Sums] = defaultdict(Sums)
    by_gateway: defaultdict[str, defaultdict[str, Sums]] = defaultdict(lambda: defaultdict(Sums))
    reaped = []
    for one in settlements:
        sums = sums_of(one)
        key = (one.tenant_id, utc_day(one.started_at))
        by_day[key] = by_day[key].plus(sums)
        if one.outcome == "reaped":
            reaped.append(one)
        else:
            tenants = by_gateway[one.gateway_id]
            as_counted = sums._replace(requests=int(one.outcome != "unserved"))
            tenants[one.tenant_id] = tenants[one.tenant_id].plus(as_counted)
    return Spooled(by_day=by_day, by_gateway=by_gateway, reaped=tuple(reaped), corrupt=tuple(corrupt))
