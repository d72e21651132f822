"""The way from an admitted request to a replica, as a gateway has it, over links of a test."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from cluster.chooser import Chooser
from cluster.dispatcher import Dispatcher
from cluster.fleet_watch import FleetWatch
from cluster.hot_prefixes import HotPrefixes
from cluster.links import Links
from cluster.policies import routing_policy
from cluster.prompt_chains import PromptChains
from cluster.waiting.config import WaitingConfig
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.wait_estimate import WaitEstimator
from cluster.waiting_room import WaitingRoom
from tenants.queued import Share

DEFAULTS = WaitingConfig()


class SeenWaiting:
    """What was counted of waiting."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.turned_away: list[tuple[str, str]] = []

    def observe_turn(self, share: Share, waited_s: float) -> None:
        self.waits.append(waited_s)

    def count_turned_away(self, share: Share, code: str) -> None:
        self.turned_away.append((share.tenant_id, code))


class Dispatching:
    """`next_replica_s()`: when the next replica will take work, on the same clock."""

    def __init__(
        self,
        links: Links,
        clock: Callable[[], float] = lambda: 0.0,
        rng: Random | None = None,
        on_poisonous: Callable[[], None] = lambda: None,
        *,
        config: WaitingConfig = DEFAULTS,
        next_replica_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        rng = rng or Random(0)
        self.seen = SeenWaiting()
        self.queue = GatewayQueue(WaitEstimator(), rng, config)
        watch = FleetWatch(self.queue, links, clock, next_replica_s)
        self.room = WaitingRoom(self.queue, links.with_credit, watch, clock, self.seen)
        chooser = Chooser(links, routing_policy("token-load"), rng, clock)
        self.hot = HotPrefixes[PromptChains]()
        self.dispatcher = Dispatcher(links, chooser, self.room, clock, self.hot, on_poisonous)
