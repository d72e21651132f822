"""Which gateway a live request belongs to, and which of its siblings have not ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.request import Request, RequestOutput


class Owned(NamedTuple):
    gateway_id: str
    request: Request
    siblings: set[int]
    """That have not ended."""


class RequestOwners:
    """Owns who is told what. A request is here until the last of its siblings has ended."""

    def __init__(self) -> None:
        self._owned: dict[str, Owned] = {}

    def __len__(self) -> int:
        return len(self._owned)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._owned

    def add(self, request: Request, gateway_id: str) -> None:
        siblings = set(range(request.sibling, request.sibling + request.n))
        self._owned[request.request_id] = Owned(gateway_id, request, siblings)

    def find(self, request_id: str) -> Owned | None:
        return self._owned.get(request_id)

    def requests_of(self, gateway_id: str) -> list[str]:
        return [request_id for request_id, owned in self._owned.items() if owned.gateway_id == gateway_id]

    def sort(self, outputs: Iterable[RequestOutput]) -> dict[str, list[RequestOutput]]:
        """The outputs by gateway, in order, those of nobody left out. Who finishes is forgotten."""
        by_gateway: dict[str, list[RequestOutput]] = {}
        for output in outputs:
            owned = self._owned.get(output.request_id)
            if owned is not None:
                by_gateway.setdefault(owned.gateway_id, []).append(output)
                if output.finish_reason is not None:
                    self._end(output, owned)
        return by_gateway

    def _end(self, output: RequestOutput, owned: Owned) -> None:
        owned.siblings.discard(output.sibling)
        if not owned.siblings:
            del self._owned[output.request_id]
