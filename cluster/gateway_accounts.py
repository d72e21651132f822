"""What an engine knows of its gateways: whose each request is, what each may send, what each is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cluster.admission_windows import AdmissionWindows
from cluster.backlog import Backlog
from cluster.credit import NO_CREDIT, Credit
from cluster.generation import WARMING
from cluster.request_owners import RequestOwners
from cluster.served_elsewhere import FlowKey, FlowService, ServedElsewhere
from engine.request import Request, RequestOutput
from tenants.service_tokens import service_tokens

SERVED_TOLD_EVERY_S = 0.2
"""And one step more: a gateway's queue knows within 0.3 s what others gave to its tenants."""


class News(NamedTuple):
    """What is to be told to one gateway now."""

    outputs: tuple[RequestOutput, ...]
    window: Credit
    served: tuple[FlowService, ...] = ()
    """What tenants got here through other gateways, since the last news."""


class GatewayAccounts:
    """Owns all that the engine's thread keeps of each attached gateway, and what it told each one last.

    Times are seconds of one monotonic clock.
    """

    def __init__(self, windows: AdmissionWindows) -> None:
        self._windows = windows
        self._owners = RequestOwners()
        self._elsewhere = ServedElsewhere()
        self._told: dict[str, Credit] = {}
        self._told_at: dict[str, float] = {}

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._owners)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._owners

    def open(self, gateway_id: str, now: float) -> None:
        """It has attached; what ran for it before is aborted."""
        self._windows.open(gateway_id, now)
        self._elsewhere.open(gateway_id)
        self._told[gateway_id], self._told_at[gateway_id] = NO_CREDIT, now

    def close(self, gateway_id: str) -> None:
        """Its stream has ended. Its requests stay until they are aborted."""
        self._windows.close(gateway_id)
        self._elsewhere.close(gateway_id)
        self._told.pop(gateway_id, None)
        self._told_at.pop(gateway_id, None)

    def report(self, gateway_id: str, backlogs: Sequence[Backlog]) -> None:
        self._windows.report(gateway_id, backlogs)

    def add(self, gateway_id: str, request: Request) -> None:
        self._owners.add(request, gateway_id)
        if request.priority != WARMING:
            self._windows.add(gateway_id, request)

    def requests_of(self, gateway_id: str) -> list[str]:
        return self._owners.requests_of(gateway_id)

    def told(self, gateway_id: str) -> Credit:
        """Its window as it was told last. Any thread may ask."""
        return self._told.get(gateway_id, NO_CREDIT)

    def news(self, outputs: Sequence[RequestOutput], now: float) -> dict[str, News]:
        """By gateway: who has outputs, another window, or has not heard of the others for a while."""
        self._count_served(outputs)
        by_gateway = self._owners.sort(outputs)
        for gateway_id, rows in by_gateway.items():
            self._windows.hear(gateway_id, rows)
        self._windows.divide(now)
        due = [gateway_id for gateway_id in self._told if self._is_due(gateway_id, now)]
        return {key: self._tell(key, by_gateway.get(key, ()), now) for key in (*by_gateway, *due)}

    def _is_due(self, gateway_id: str, now: float) -> bool:
        if self._windows.window_of(gateway_id) != self._told[gateway_id]:
            return True
        return self._elsewhere.has_news(gateway_id) and now - self._told_at[gateway_id] >= SERVED_TOLD_EVERY_S

    def _tell(self, gateway_id: str, rows: Sequence[RequestOutput], now: float) -> News:
        news = News(tuple(rows), self._windows.window_of(gateway_id), self._elsewhere.take(gateway_id))
        if gateway_id in self._told:
            self._told[gateway_id], self._told_at[gateway_id] = news.window, now
        return news

    def _count_served(self, outputs: Iterable[RequestOutput]) -> None:
        if len(self._told) < 2:
            return
        served: dict[str, dict[FlowKey, float]] = defaultdict(lambda: defaultdict(float))
        for output in outputs:
            owned = self._owners.find(output.request_id)
            if owned is not None and output.token_ids and owned.request.priority != WARMING:
                key = (owned.request.flow.flow_id, owned.request.priority)
                served[owned.gateway_id][key] += _service(owned.request, output)
        for gateway_id, by_flow in served.items():
            self._elsewhere.add(gateway_id, by_flow)


def _service(request: Request, output: RequestOutput) -> float:
    """The output, and with the first one the input; what a resumption computes again is charged to nobody."""
    num_output_tokens = len(output.token_ids)
    if output.num_cached_tokens is None or request.output_token_ids:
        return service_tokens(0, 0, num_output_tokens)
    num_uncached_tokens = len(request.prompt_token_ids) - output.num_cached_tokens
    return service_tokens(num_uncached_tokens, output.num_cached_tokens, num_output_tokens)
