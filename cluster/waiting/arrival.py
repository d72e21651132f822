"""A request that wants to wait at this gateway."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.credit import Wanted
from cluster.generation import PRIORITY
from tenants.fair_queue import Queued, Share


@dataclass(frozen=True, slots=True)
class Arrival:
    """All times in seconds on the clock that `now` is of."""

    entry_id: str
    share: Share
    uncached_tokens: int
    first_token_by_s: float
    """The class's deadline, or the client's own if that comes earlier (`WaitingConfig.first_token_by_s`)."""
    answer_by_s: float
    cached_tokens: int = 0
    max_queue_len: int | None = None
    """Of the tenant's terms; None: no limit of its own."""
    claim: bytes = b""
    """Alike for a request and the same one sent again, as a digest of its prompt is: by it a client that was
    told to come back is known. Empty: any request of the tenant may be the one."""
    is_return: bool = False
    """The client itself says that it comes back (`x-stainless-retry-count`), maybe to another gateway."""
    num_siblings: int = 1
    """Answers that it asks for: each takes a seat of a replica."""

    @property
    def queued(self) -> Queued:
        return Queued(self.entry_id, self.share, self.uncached_tokens, self.cached_tokens, self.num_siblings)


def wanted_by(entry: Queued) -> Wanted:
    """Of a replica."""
    return Wanted(entry.uncached_tokens, entry.share.tenant_id, PRIORITY[entry.share.service_class])
