"""One gateway's way from an admitted request to a replica: its queue, its room, its choice."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from random import Random

from cluster.api.waiting import end_all
from cluster.chooser import Chooser
from cluster.dispatcher import Dispatcher
from cluster.fleet_watch import LOOK_EVERY_S, FleetWatch
from cluster.hot_prefixes import HotPrefixes
from cluster.links import Links
from cluster.policies import routing_policy
from cluster.prompt_chains import PromptChains
from cluster.settings import ServeSettings
from cluster.telemetry import Telemetry
from cluster.waiting.config import WaitingConfig
from cluster.waiting.gateway_queue import GatewayQueue
from cluster.waiting.wait_estimate import WaitEstimator
from cluster.waiting_room import WaitingRoom
from cluster.warming import Warming
from cluster.warming_metrics import WarmingMetrics
from engine.request import Timing
from tenants.spool.every import every


class GatewayDispatch:
    """Owns the parts, and the task that keeps queue and replicas informed of each other.

    `until_next_replica_s()`: until the next one is expected to serve; None: there is none on its way.
    """

    def __init__(
        self,
        links: Links,
        settings: ServeSettings,
        telemetry: Telemetry,
        until_next_replica_s: Callable[[], float | None],
    ) -> None:
        rng = Random(secrets.randbits(64))
        self._until_next_replica_s = until_next_replica_s
        self._queue = GatewayQueue(
            WaitEstimator(telemetry.waiting.observe_wait), rng, waiting_config(settings)
        )
        watch = FleetWatch(
            self._queue,
            links,
            time.monotonic,
            self._next_replica_s,
            starts_on_demand=settings.fewest_replicas == 0,
            num_gateways=settings.gateways,
        )
        self.room = WaitingRoom(self._queue, links.with_credit, watch, time.monotonic, telemetry.waiting)
        chooser = Chooser(links, routing_policy(settings.routing), rng, time.monotonic)
        hot = HotPrefixes[PromptChains]()
        self.dispatcher = Dispatcher(
            links, chooser, self.room, time.monotonic, hot, telemetry.count_poisonous
        )
        self.warming = Warming(
            links, hot, settings.warm_prefixes, time.monotonic, WarmingMetrics(telemetry.registry)
        )
        telemetry.waiting.gauges = self._gauges
        self._looking: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._looking = asyncio.ensure_future(every(LOOK_EVERY_S, self.room.look))

    async def close(self) -> None:
        self.room.close()
        await self.warming.close()
        if self._looking is not None:
            await end_all(self._looking)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that wait and are not cached."""
        return sum(self._queue.backlog().values())

    def hear_timing(self, timing: Timing) -> None:
        """Of a request that has ended: for how long it had its seat, if it ever had one."""
        if timing.seat_s > 0:
            self._queue.estimator.rates.ended(timing.seat_s, time.monotonic())

    def _next_replica_s(self) -> float | None:
        until_s = self._until_next_replica_s()
        return None if until_s is None else time.monotonic() + until_s

    def _gauges(self) -> Mapping[str, float]:
        return {
            "gateway_requests_waiting": len(self.room),
            "gateway_tokens_waiting": self.waiting_tokens,
            "promised_returns": self._queue.num_promised,
            "wait_mean_error_seconds": self._queue.estimator.mean_error_s,
            "first_token_after_turn_seconds": self._queue.estimator.after_turn_s,
            "other_gateways_ratio": 1 - self._queue.estimator.rates.part,
            "brownout": self._queue.is_brownout,
        }


def waiting_config(settings: ServeSettings) -> WaitingConfig:
    return WaitingConfig(
        interactive_deadline_s=settings.interactive_deadline_s,
        batch_deadline_s=settings.batch_deadline_s,
        max_waiting=settings.max_waiting,
    )
