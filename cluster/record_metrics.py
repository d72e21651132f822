"""The numbers of a gateway's part in the record of tenants, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

COUNTERS = {
    "settlements_corrupt": "Lines of spools that are damaged",
    "settlements_expired": "Settlements found too late to be applied safely",
    "settlements_refused": "Settlements whose place in Redis holds something else",
    "settlements_dropped": "Settlements that are in no spool: too many waited for the disk",
    "spool_failed_writes": "Groups of settlements that the disk did not take",
    "spools_replayed": "Spools of dead gateways that were applied",
    "requests_reaped": "Reservations of dead gateways that were settled",
    "failed_lease_renewals": "Renewals of leases that Redis did not take; a lease outlives several",
    "failed_record_looks": "Looks at the record, twice a second, that failed and were tried again",
}
"""Each is exported with the suffix `_total`."""
GAUGES = {
    "settlements_pending": "Settlements that Redis does not have yet",
    "settlement_oldest_pending_seconds": "For how long there has been one",
    "spools_unreadable": "Spools of dead gateways that cannot be read",
    "snapshot_behind": "1 while the copy of the record cannot be written",
    "gateways_live": "Gateways, as this one knows",
    "prepaid_held_micro_units": "Reserved for a time without Redis",
}


class RecordMetrics(Collector):
    """`read` tells all of them by name, now."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        values = self._read()
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"headrace_{name}", text, value=values[name])
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"headrace_{name}", text, value=values[name])
