"""Which gateway a live request belongs to, and which of its siblings have not ended."""

from __future__ import annotations

from collections.abc import Iterable

from engine.request import Request, RequestOutput


class RequestOwners:
    """Owns who is told what. A request is here until the last of its siblings has ended."""

    def __init__(self) -> None:
        self._gateway_of: dict[str, str] = {}
        self._siblings: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._gateway_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._gateway_of

    def add(self, request: Request, gateway_id: str) -> None:
        self._gateway_of[request.request_id] = gateway_id
        self._siblings[request.request_id] = set(range(request.sibling, request.sibling + request.n))

    def requests_of(self, gateway_id: str) -> list[str]:
        return [request_id for request_id, owner in self._gateway_of.items() if owner == gateway_id]

    def sort(self, outputs: Iterable[RequestOutput]) -> dict[str, list[RequestOutput]]:
        """The outputs by gateway, in order, those of nobody left out. Who finishes is forgotten."""
        by_gateway: dict[str, list[RequestOutput]] = {}
        for output in outputs:
            gateway_id = self._gateway_of.get(output.request_id)
            if gateway_id is not None:
                by_gateway.setdefault(gateway_id, []).append(output)
                if output.finish_reason is not None:
                    self._end(output)
        return by_gateway

    def _end(self, output: RequestOutput) -> None:
        siblings = self._siblings[output.request_id]
        siblings.discard(output.sibling)
        if not siblings:
            del self._siblings[output.request_id], self._gateway_of[output.request_id]
