"""The routing policies by name. A policy object belongs to one gateway: some keep state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cluster.policies.affinity import Affinity
from cluster.policies.least_load import LeastLoad
from cluster.policies.power_of_two import PowerOfTwo
from cluster.policies.round_robin import RoundRobin
from cluster.policies.token_load import TokenLoad
from cluster.routing import Routing, RoutingPolicy

POLICIES: Mapping[Routing, Callable[[], RoutingPolicy]] = {
    "token-load": TokenLoad,
    "round-robin": RoundRobin,
    "least-load": LeastLoad,
    "power-of-two": PowerOfTwo,
    "affinity": Affinity,
}


def routing_policy(name: Routing) -> RoutingPolicy:
    """A new policy object."""
    return POLICIES[name]()
