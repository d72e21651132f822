"""Where requests wait at a gateway: what production's queue does for it, and the naive thing beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from cluster.served_elsewhere import FlowService
from cluster.waiting.arrival import Arrival
from cluster.waiting.config import WaitingConfig
from cluster.waiting.fleet import Fleet
from cluster.waiting.gateway_queue import OfferResult
from cluster.waiting.shedding import Rejection
from cluster.waiting.wait_estimate import WaitEstimator
from tenants.queued import Queued, Share


class Line(Protocol):
    """What a gateway asks of `GatewayQueue`."""

    @property
    def estimator(self) -> WaitEstimator: ...
    @property
    def config(self) -> WaitingConfig: ...
    def __len__(self) -> int: ...
    def see(self, fleet: Fleet, now: float) -> None: ...
    def max_tokens(self, share: Share, asked: int) -> int: ...
    def check(self, arrival: Arrival, now: float) -> Rejection | None: ...
    def offer(self, arrival: Arrival, now: float) -> OfferResult: ...
    def next(self, now: float, has_credit: Callable[[Queued], bool]) -> Arrival | None: ...
    def left(self, entry_id: str) -> bool: ...
    def expire(self, now: float) -> list[str]: ...
    def served(self, share: Share, output_tokens: int) -> None: ...
    def served_elsewhere(self, served: Iterable[FlowService]) -> None: ...


class FirstCome:
    """First come, first served, however many there are and however long they wait: the baseline."""

    def __init__(self, estimator: WaitEstimator, rng: Random, config: WaitingConfig) -> None:
        self.estimator = estimator
        self.config = config
        self._waiting: dict[str, Arrival] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def see(self, fleet: Fleet, now: float) -> None:
        return

    def max_tokens(self, share: Share, asked: int) -> int:
        return asked

    def check(self, arrival: Arrival, now: float) -> Rejection | None:
        return None

    def offer(self, arrival: Arrival, now: float) -> OfferResult:
        self._waiting[arrival.entry_id] = arrival
        return OfferResult(None)

    def next(self, now: float, has_credit: Callable[[Queued], bool]) -> Arrival | None:
        first = next(iter(self._waiting.values()), None)
        return self._waiting.pop(first.entry_id) if first and has_credit(first.queued) else None

    def left(self, entry_id: str) -> bool:
        return self._waiting.pop(entry_id, None) is not None

    def expire(self, now: float) -> list[str]:
        return []

    def served(self, share: Share, output_tokens: int) -> None:
        return

    def served_elsewhere(self, served: Iterable[FlowService]) -> None:
        return
