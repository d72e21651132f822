"""Shares and entries of the fair queue for tests: what a test does not name has a plain default."""

from __future__ import annotations

from itertools import count

from tenants.fair_queue import FairQueue, Queued, Share
from tenants.terms import ServiceClass

_ids = count()


def a_share(tenant_id: str = "acme", weight: int = 1, service_class: ServiceClass = "interactive") -> Share:
    return Share(tenant_id, weight, service_class)


def an_entry(share: Share | str = "acme", uncached: int = 100, cached: int = 0) -> Queued:
    """With an id that nothing else has."""
    share = a_share(share) if isinstance(share, str) else share
    return Queued(f"{share.tenant_id}-{next(_ids)}", share, uncached, cached)


def pushed(queue: FairQueue, share: Share | str, *sizes: int) -> list[Queued]:
    """Entries of so many uncached tokens, in this order."""
    entries = [an_entry(share, uncached) for uncached in sizes]
    for entry in entries:
        queue.push(entry)
    return entries


def popped(queue: FairQueue, num: int) -> list[Queued]:
    return [entry for _ in range(num) if (entry := queue.pop()) is not None]
