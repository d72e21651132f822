"""A cluster in virtual time: what decides is the production code, what computes and connects is a clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

from loadtest.fleet.call import Ask, Call
from loadtest.fleet.client import MAX_RETRIES, Clients
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.gateway import VirtualGateway
from loadtest.fleet.pool import VirtualPool
from loadtest.fleet.replica import VirtualReplica
from loadtest.fleet.run import CallRecord, FleetRun, WaitRecord
from loadtest.fleet.scaling import VirtualScaling
from loadtest.fleet.traffic import ClosedLoopTraffic, OpenLoopTraffic
from tenants.ledger.memory_ledger import MemoryLedger


class VirtualFleet:
    """Owns the clock and all that lives by it, for one run. The same config and traffic give the same run.

    `on_time` hears now and then how far it is, in seconds.
    """

    def __init__(
        self,
        config: FleetConfig,
        *,
        max_retries: int = MAX_RETRIES,
        on_time: Callable[[float], None] = lambda now: None,
    ) -> None:
        self.config = config
        self.clock = VirtualClock()
        self._calls: list[CallRecord] = []
        self._waits: list[WaitRecord] = []
        self._numbers = count()
        self._num_to_come = 0
        """Clients who have not begun."""
        self.ledger = MemoryLedger(lambda: round(self.clock.now * 1e6))
        """The record's, for all gateways."""
        self.gateways = [
            VirtualGateway(f"gateway-{number}", config, self.clock, self.ledger, self._waited)
            for number in range(config.num_gateways)
        ]
        self._clients = Clients(
            self.clock, self.gateways, Random(config.seed), self._ended, max_retries=max_retries
        )
        self._pool = VirtualPool(config, self.clock, self._add, self._remove)
        if config.scaler is not None:
            VirtualScaling(config.scaler, config, self.clock, self._pool, self.gateways)
        self.clock.every(1.0, lambda: on_time(self.clock.now))
        self.clock.run(until=2 * config.link_delay_s)  # all have said hello before anybody comes

    def add(self, traffic: OpenLoopTraffic | ClosedLoopTraffic) -> None:
        if isinstance(traffic, OpenLoopTraffic):
            for at in traffic.arrivals(self.config.seed):
                self.come(at, traffic.prompts.make)
        else:
            self._num_to_come += traffic.num_clients
            for _ in range(traffic.num_clients):
                self.clock.at(0.0, partial(self._begin, traffic))

    def come(self, at: float, make: Callable[[int], Ask]) -> None:
        """An independent client, at that time."""
        self._num_to_come += 1
        self.clock.at(at, partial(self._come, make))

    def run(self, until: float = math.inf) -> FleetRun:
        """Up to that time, or until all that was asked has ended."""
        self.clock.run(until, lambda: not self._num_to_come and not self._clients.num_open)
        return FleetRun(
            self.config, self._calls, self._waits, self._pool.served, self.clock.now, self._clients.num_open
        )

    def _come(self, make: Callable[[int], Ask]) -> None:
        self._num_to_come -= 1
        self._clients.send(make(next(self._numbers)))

    def _begin(self, loop: ClosedLoopTraffic) -> None:
        self._num_to_come -= 1
        self._next(loop)

    def _next(self, loop: ClosedLoopTraffic) -> None:
        ask = loop.make(next(self._numbers))
        if ask is not None:
            self._clients.send(ask, partial(self._next, loop))

    def _ended(self, call: Call) -> None:
        self._calls.append(CallRecord.of(call))

    def _waited(self, predicted_s: float, actual_s: float) -> None:
        self._waits.append(WaitRecord(predicted_s, actual_s))

    def _add(self, replica: VirtualReplica) -> None:
        for gateway in self.gateways:
            gateway.add(replica)

    def _remove(self, replica: VirtualReplica) -> None:
        for gateway in self.gateways:
            gateway.remove(replica)
