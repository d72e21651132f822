"""What a replica gave to tenants on behalf of other gateways: their queues charge it, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec


class FlowService(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a tenant got in one class."""

    tenant_id: str
    tokens: float
    """Of service."""
    priority: int = 0
    """As of `Request.priority`: lower is served first."""


FlowKey = tuple[str, int]
"""Tenant id and priority: a tenant's classes are charged apart."""


class ServedElsewhere:
    """Owns, for each attached gateway, what the others' requests got here since it was last told."""

    def __init__(self) -> None:
        self._untold: dict[str, defaultdict[FlowKey, float]] = {}

    def open(self, gateway_id: str) -> None:
        self._untold[gateway_id] = defaultdict(float)

    def close(self, gateway_id: str) -> None:
        self._untold.pop(gateway_id, None)

    def add(self, gateway_id: str, served: Mapping[FlowKey, float]) -> None:
        """`served`: tokens of service that requests of this gateway got."""
        for other_id, untold in self._untold.items():
            if other_id != gateway_id:
                for key, tokens in served.items():
                    untold[key] += tokens

    def has_news(self, gateway_id: str) -> bool:
        return bool(self._untold.get(gateway_id))

    def take(self, gateway_id: str) -> tuple[FlowService, ...]:
        """One for each tenant and class that got something."""
        untold = self._untold.get(gateway_id)
        if not untold:
            return ()
        self._untold[gateway_id] = defaultdict(float)
        return tuple(
            FlowService(tenant_id, tokens, priority) for (tenant_id, priority), tokens in untold.items()
        )
