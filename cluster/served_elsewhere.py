"""What a replica gave to tenants on behalf of other gateways: their queues charge it, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class ServedElsewhere:
    """Owns, for each attached gateway, what the others' requests got here since it was last told."""

    def __init__(self) -> None:
        self._untold: dict[str, defaultdict[str, float]] = {}

    def open(self, gateway_id: str) -> None:
        self._untold[gateway_id] = defaultdict(float)

    def close(self, gateway_id: str) -> None:
        self._untold.pop(gateway_id, None)

    def add(self, gateway_id: str, served: Mapping[str, float]) -> None:
        """`served`: tenant id → tokens of service that requests of this gateway got."""
        for other_id, untold in self._untold.items():
            if other_id != gateway_id:
                for tenant_id, tokens in served.items():
                    untold[tenant_id] += tokens

    def has_news(self, gateway_id: str) -> bool:
        return bool(self._untold.get(gateway_id))

    def take(self, gateway_id: str) -> dict[str, float] | None:
        """Tenant id → tokens of service; None: nothing."""
        untold = self._untold.get(gateway_id)
        if not untold:
            return None
        self._untold[gateway_id] = defaultdict(float)
        return dict(untold)
