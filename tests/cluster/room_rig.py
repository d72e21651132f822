"""A gateway whose replicas grant what a test says: requests that wait, and who had their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.cluster_generation import ClusterGeneration
from cluster.credit import Credit
from cluster.fleet_watch import FleetWatch
from cluster.links import Links
from cluster.waiting.config import WaitingConfig
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting_room import WaitingRoom, WithCredit
from tests.cluster.dispatching import SeenWaiting
from tests.cluster.fake_replica import settle
from tests.cluster.generator_rig import Rig, account_of

Starting = asyncio.Task[ClusterGeneration]

PLENTY = 100_000
"""Tokens of a window that only seats bound."""
STEP = 64
"""Tokens of one step of the fake replica."""


async def with_replica(rig: Rig, *names: str) -> Rig:
    for name in names or ("a",):
        rig.replica(name).is_open = False
    return await rig.open(*rig.replicas)


async def small_rig(**settings: float) -> Rig:
    """With other settings of the room; the test closes its links."""
    return await with_replica(Rig(WaitingConfig(**settings)))  # type: ignore[arg-type]


async def begun(rig: Rig, request_id: str, tenant_id: str = "acme", **fields: Any) -> Starting:
    """A request that waits now, or had its turn already."""
    terms = fields.pop("terms", {})
    account = account_of(tenant_id, **terms)
    starting = asyncio.ensure_future(rig.start(request_id, account=account, **fields))
    await settle()
    return starting


async def grant(rig: Rig, seats: int, num_tokens: int = PLENTY, replica: str = "a") -> None:
    """`seats` beside those that are taken."""
    taken = sum(request.n for request in rig.replicas[replica].submitted)
    rig.replicas[replica].say(credit=Credit(num_tokens, seats + taken))
    await settle()


def order(rig: Rig, replica: str = "a") -> list[str]:
    return [request.request_id.rpartition("-")[0] for request in rig.replicas[replica].submitted]


async def error_of(starting: Starting) -> ApiError:
    """What it ended with; it has ended by now."""
    await settle()
    assert starting.done()
    with pytest.raises(ApiError) as caught:
        await starting
    return caught.value


def has_room(rig: Rig) -> bool:
    """Nobody waits, and nothing is booked at replica a: its window could be of one request."""
    rig.replicas["a"].say(credit=Credit(1, 1))
    return not len(rig.dispatching.room) and not len(rig.dispatching.queue) and not rig.running.num_requests


async def is_empty(rig: Rig) -> bool:
    is_nobody_there = has_room(rig)
    await settle()
    return is_nobody_there and rig.with_credit() == {"a"}


def a_room(
    queue: GatewayQueue,
    with_credit: WithCredit,
    links: Links,
    clock: Callable[[], float] = lambda: 0.0,
) -> WaitingRoom:
    watch = FleetWatch(queue, links, clock)
    return WaitingRoom(queue, with_credit, watch, clock, SeenWaiting())
