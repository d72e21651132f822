"""Collects the evidence: usage from the API, counters from each process's own port, lines from spools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cluster.ledger_cli.evidence import Evidence, Gone, Reading, TenantDay, spooled_from
from cluster.ledger_cli.scrape import engine_reading, gateway_reading
from cluster.ledger_cli.targets import Fetch, Target, gone_from, pages, targets_of
from cluster.settings import SPOOLS
from tenants.ledger.usage import Sums
from tenants.spool.record import SpoolRecord

Usage = dict[TenantDay, Sums]
AskUsage = Callable[[str | None], Sequence[Mapping[str, Any]]]
"""Rows of usage by day: of one tenant, or of all that the record names."""


class NotOurs(Exception):
    """What answered is not what it should be; one line."""


class Gathering:
    """`ask_usage` asks the API, `fetch` a metrics port."""

    def __init__(self, state_dirs: Sequence[Path], ask_usage: AskUsage, fetch: Fetch) -> None:
        self._state_dirs = state_dirs
        self._ask_usage = ask_usage
        self._fetch = fetch

    def evidence(self, first_day: str, last_day: str) -> Evidence:
        """Raises `NotOurs`, and whatever `ask_usage` raises."""
        try:
            before, _ = self._look()
            corrupt: list[str] = []
            spools = [state_dir / SPOOLS for state_dir in self._state_dirs]
            spooled = spooled_from(SpoolRecord(*spools, on_corrupt=corrupt.append).settlements(), corrupt)
            after, gone = self._look()
            spenders = {tenant for tenant, day in spooled.by_day if first_day <= day <= last_day}
            unlisted = self._usage(sorted(spenders - {tenant for tenant, _ in after.usage}))
        except ValueError as error:
            raise NotOurs(str(error)) from None
        return Evidence(
            first_day=first_day,
            last_day=last_day,
            before=_with(before, unlisted),
            spooled=spooled,
            after=_with(after, unlisted),
            gone=gone,
        )

    def _look(self) -> tuple[Reading, Gone]:
        targets = [target for state_dir in self._state_dirs for target in targets_of(state_dir)]
        lost = [target for state_dir in self._state_dirs for target in gone_from(state_dir)]
        engines = {
            name: engine_reading(page)
            for name, page in pages(targets, "replica", self._fetch)
            if page is not None
        }
        gateways = {
            name: gateway_reading(page)
            for name, page in pages(targets, "gateway", self._fetch)
            if page is not None
        }
        reading = Reading(
            usage=self._usage([None]),
            gateways=gateways,
            engines={name: made for name, (made, _) in engines.items()},
            num_running=sum(running for _, running in engines.values()),
        )
        lost += [target for target in targets if target.name not in {*engines, *gateways}]
        return reading, Gone(_names(lost, "gateway"), _names(lost, "replica"))

    def _usage(self, tenants: Sequence[str | None]) -> Usage:
        usage: Usage = {}
        for row in (row for tenant in tenants for row in self._ask_usage(tenant)):
            try:
                key = (str(row["tenant_id"]), str(row["day"]))
                sums = Sums(*(int(row[figure]) for figure in Sums._fields))
            except (KeyError, TypeError):
                raise ValueError("the usage that the cluster tells has other rows than ours") from None
            usage[key] = usage.get(key, Sums()).plus(sums)
        return usage


def _with(reading: Reading, usage: Usage) -> Reading:
    return msgspec.structs.replace(reading, usage={**usage, **reading.usage})


def _names(targets: list[Target], process: str) -> frozenset[str]:
    return frozenset(target.name for target in targets if target.process == process)
