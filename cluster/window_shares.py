"""How a replica's window is divided among gateways: max-min fair over the tenants that ask for it.

A tenant asks for what it has there and what waits for it. Each is filled up to that, all at the same level by
weight, until the window is full; what a tenant gets goes to its gateways in proportion to what it asks for at
each. So a gateway with one flood does not take the window from one with ten quiet tenants. Lower classes get
`LOWER_CLASS_SHARE` while others ask, and what these leave. What nobody asks for is shared equally: whoever
comes next can start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenants.batch_floor import INTERACTIVE_PER_BATCH
from tenants.max_min import max_min_shares

LOWER_CLASS_SHARE = 1 / (INTERACTIVE_PER_BATCH + 1)


class FlowDemand(NamedTuple):
    """What one tenant asks for at one gateway, in whatever the window counts."""

    tenant_id: str
    """Empty: several tenants that are told as one, others at each gateway."""
    amount: int
    weight: int = 1
    priority: int = 0


@dataclass(eq=False)
class _Flow:
    """One tenant's demand in one class, at all gateways."""

    priority: int
    weight: int
    amount_at: dict[str, int] = field(default_factory=dict)
    filled: float = 0.0

    @property
    def amount(self) -> int:
        return sum(self.amount_at.values())


def window_shares(window: int, demands: Mapping[str, Sequence[FlowDemand]]) -> dict[str, float]:
    """The share of each gateway, by id, in [0, 1]; their sum is 1. One gateway at least, and a window of 1.

    Complexity: O(F log F) for F flows.
    """
    flows = _flows(demands)
    left = max(0.0, _fill_by_class(flows, window))
    shares = dict.fromkeys(demands, left / window / len(demands))
    for flow in flows:
        for gateway_id, amount in flow.amount_at.items():
            shares[gateway_id] += flow.filled / window * amount / flow.amount
    return shares


def _flows(demands: Mapping[str, Sequence[FlowDemand]]) -> list[_Flow]:
    flows: dict[tuple[int, str, str], _Flow] = {}
    for gateway_id, one in _asked(demands):
        key = (one.priority, one.tenant_id, "" if one.tenant_id else gateway_id)
        flow = flows.setdefault(key, _Flow(one.priority, one.weight))
        # Room to start has no tenant either, and must not take the weight of the many that are told as one.
        flow.weight = max(flow.weight, one.weight)
        flow.amount_at[gateway_id] = flow.amount_at.get(gateway_id, 0) + one.amount
    return list(flows.values())


def _asked(demands: Mapping[str, Sequence[FlowDemand]]) -> Iterator[tuple[str, FlowDemand]]:
    for gateway_id, ones in demands.items():
        yield from ((gateway_id, one) for one in ones if one.amount > 0)


def _fill_by_class(flows: Sequence[_Flow], window: int) -> float:
    """What is left of the window."""
    first = min((flow.priority for flow in flows), default=0)
    higher = [flow for flow in flows if flow.priority == first]
    lower = [flow for flow in flows if flow.priority > first]
    kept = min(LOWER_CLASS_SHARE * window, sum(flow.amount for flow in lower))
    return _fill(lower, kept + _fill(higher, window - kept))


def _fill(flows: Sequence[_Flow], left: float) -> float:
    """Fills flows to one level per weight; what is left once all are full."""
    demands = {flow: flow.amount for flow in flows}
    for flow, share in max_min_shares(left, demands, {flow: flow.weight for flow in flows}).items():
        flow.filled = share
        left -= share
    return left
