"""How a gateway in virtual time warms replicas that come: what to compute is production's decision."""

from __future__ import annotations

from itertools import count

from cluster.hot_prefixes import HotPrefixes
from cluster.index.prefix_index import indexed
from cluster.warming_plan import WARM_FOR_S, WarmingPlans, warming_request
from engine.request import RequestOutput
from loadtest.fleet.call import Ask
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.link import VirtualLink


class VirtualWarming:
    """Owns what one gateway has sent for it and has not heard the end of: one request a replica."""

    def __init__(self, gateway_id: str, num_prefixes: int, clock: VirtualClock) -> None:
        self._gateway_id = gateway_id
        self._hot = HotPrefixes[Ask]()
        self._plans = WarmingPlans(self._hot, num_prefixes)
        self._clock = clock
        self._ids = count()
        self._running: dict[str, str] = {}
        """Request ids, by replica."""

    def note(self, ask: Ask) -> None:
        """Its prompt has been computed."""
        self._hot.note(ask, indexed(ask.block_hashes), self._clock.now)

    def greet(self, link: VirtualLink, num_others: int) -> None:
        """Its replica has said hello, beside so many others that take work."""
        self._plans.greet(link.replica.hello, num_others, self._clock.now)
        self._send_next(link)
        self._clock.after(WARM_FOR_S, lambda: self._stop(link))

    def hear(self, link: VirtualLink, output: RequestOutput) -> bool:
        """Whether it is the end of what was sent."""
        is_own = self._running.get(link.replica.replica_id) == output.request_id
        if is_own:
            self._send_next(link)
        return is_own

    def forget(self, replica_id: str) -> None:
        """It has ended."""
        self._running.pop(replica_id, None)
        self._plans.forget(replica_id)

    def _send_next(self, link: VirtualLink) -> None:
        replica_id = link.replica.replica_id
        ask = self._plans.next(replica_id, self._clock.now)
        if ask is None:
            self.forget(replica_id)
            return
        self._running[replica_id] = request_id = f"warming-{self._gateway_id}-{next(self._ids)}"
        link.warm(warming_request(request_id, ask.prompt_token_ids, ask.customer.root, ask.block_hashes))

    def _stop(self, link: VirtualLink) -> None:
        request_id = self._running.get(link.replica.replica_id)
        if request_id is not None:
            link.abort(request_id)
