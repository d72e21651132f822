"""A gateway's queue for tests, and what comes to it: what a test does not name has a plain default."""

from __future__ import annotations

from random import Random

from cluster.waiting.arrival import Arrival
from cluster.waiting.config import WaitingConfig
from cluster.waiting.fleet import Fleet
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.replica_rates import COLD_PREFILL_TOKENS_PER_S
from cluster.waiting.shedding import Rejection
from cluster.waiting.wait_estimate import WaitEstimator
from tenants.fair_queue import Share
from tests.cluster.waiting_rig import an_arrival

SEATS = 1000
"""So many that only tokens are waited for."""
SECOND = round(COLD_PREFILL_TOKENS_PER_S)
"""Tokens that one replica prefills in a second."""
FLEET = Fleet(1, SEATS, SEATS)


def a_queue(num_replicas: int = 1, *, due: float | None = None, **settings: float) -> GatewayQueue:
    queue = GatewayQueue(WaitEstimator(), Random(0), WaitingConfig(**settings))  # type: ignore[arg-type]
    queue.see(Fleet(num_replicas, num_replicas * SEATS, num_replicas * SEATS, due), 0.0)
    return queue


def fill(queue: GatewayQueue, share: Share, seconds: int, now: float = 0.0) -> list[str]:
    """Work of a tenant, a second each."""
    ids = [f"{share.tenant_id} {n}" for n in range(seconds)]
    for entry_id in ids:
        assert queue.offer(an_arrival(entry_id, share, SECOND, now=now), now).refused is None
    return ids


def refused(queue: GatewayQueue, arrival: Arrival, now: float = 0.0) -> Rejection:
    outcome = queue.offer(arrival, now)
    assert outcome.refused is not None
    assert outcome.shed == ()
    return outcome.refused
