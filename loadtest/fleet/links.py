"""A gateway's links in virtual time, all together: who takes work, who has credit, what they told."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.backlog import Backlog, bounded
from cluster.credit import Wanted
from cluster.routing import ReplicaLoad
from engine.counters import EngineCounters
from engine.request import Request
from loadtest.fleet.call import Call
from loadtest.fleet.link import VirtualLink


class VirtualLinks:
    """Owns the links, by replica. Answers as `Links` does."""

    def __init__(self) -> None:
        self._links: dict[str, VirtualLink] = {}

    def add(self, link: VirtualLink) -> None:
        self._links[link.replica.replica_id] = link

    def remove(self, replica_id: str) -> None:
        del self._links[replica_id]

    def candidates(self) -> list[ReplicaLoad]:
        return [link.load() for link in self._links.values() if link.can_work]

    def with_credit(self, wanted: Wanted) -> list[ReplicaLoad]:
        return [
            link.load() for link in self._links.values() if link.can_work and link.balance.has_credit(wanted)
        ]

    def states(self) -> dict[str, EngineCounters]:
        return {one: link.counters for one, link in self._links.items() if link.counters is not None}

    def claims(self, block_hashes: tuple[bytes, ...]) -> dict[str, int]:
        """By replica, as the prefix index would say."""
        return {one: link.replica.num_claimed_blocks(block_hashes) for one, link in self._links.items()}

    def submit(self, replica_id: str, request: Request, call: Call) -> None:
        self._links[replica_id].submit(request, call)

    def abort(self, call_id: str) -> None:
        """If it runs."""
        for link in self._links.values():
            if call_id in link.calls:
                link.abort(call_id)

    def report(self, backlogs: Iterable[Backlog]) -> None:
        told = bounded(backlogs)
        for link in self._links.values():
            link.report(told)
