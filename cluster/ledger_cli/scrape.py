"""The counters that `headrace ledger verify` reads from the ports of living gateways and replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cluster.ledger_cli.evidence import GatewayReading
from tenants.ledger.usage import Sums

TENANT_COUNTERS = {
    "headrace_settled_requests_total": "requests",
    "headrace_prompt_tokens_total": "prompt_tokens",
    "headrace_cached_prompt_tokens_total": "cached_tokens",
    "headrace_generation_tokens_total": "completion_tokens",
    "headrace_settled_cost_total": "cost",
}
"""Counter of a gateway → the figure that it is."""


def gateway_reading(text: str) -> GatewayReading:
    """Raises ValueError for what is no metrics page."""
    tenants: defaultdict[str, Sums] = defaultdict(Sums)
    totals: defaultdict[str, int] = defaultdict(int)
    for sample in _samples(text):
        figure = TENANT_COUNTERS.get(sample.name)
        if figure is None:
            totals[sample.name] += int(sample.value)
        elif sample.labels.get("outcome") != "unserved":
            tenant = sample.labels["tenant"]
            tenants[tenant] = tenants[tenant].plus(Sums()._replace(**{figure: int(sample.value)}))
    return GatewayReading(
        tenants=dict(tenants),
        discarded_tokens=totals["headrace_discarded_tokens_total"],
        lost_links=totals["headrace_lost_links_total"],
    )


def engine_reading(text: str) -> tuple[int, int]:
    """(tokens generated, requests running and waiting) of a replica. Raises ValueError."""
    found = {sample.name: int(sample.value) for sample in _samples(text) if not sample.labels}
    try:
        running = found["headrace_engine_requests_running"] + found["headrace_engine_requests_waiting"]
        return found["headrace_engine_generation_tokens_total"], running
    except KeyError as error:
        raise ValueError(f"{error} is missing") from None


def _samples(text: str) -> Iterator[Sample]:
    """Finite ones of ours that only count or gauge."""
    for family in text_string_to_metric_families(text):
        if family.type in ("counter", "gauge"):
            yield from (sample for sample in family.samples if sample.name.startswith("headrace_"))
