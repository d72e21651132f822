"""Requests that their clients named by an `Idempotency-Key`: the values, and the protocol of their store.

A request is *running* while its owner renews a lease, and then *finished*, *too large* or *without room* for
`KEEP_S`.
One that failed is forgotten, and so is one whose owner has died: the next that asks is the new owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

LEASE_S = 10.0
"""An owner that does not renew for so long has died."""
RENEW_EVERY_S = 2.0
KEEP_S = 24 * 3600.0
MAX_OUTCOME_BYTES = 256 * 1024
"""Of the answer's body."""
MAX_OUTCOMES = 10_000
"""That a tenant has stored."""
MAX_STORED_BYTES = 64 * 1024 * 1024
"""Of all of a tenant's outcomes, as they are sealed."""

Kept = Literal["stored", "too_large", "no_room"]
"""What a request that ended well left: its outcome, or only that it was too large, or one too many."""


class Mark(msgspec.Struct, frozen=True):
    """A request as the store may know it: keyed hashes, in hex."""

    tenant_id: str
    key_hash: str
    """Of the client's key and the route."""
    body_hash: str


class StoredOutcome(msgspec.Struct, frozen=True):
    """A complete answer of status 200, as it is sent again."""

    headers: Mapping[str, str]
    body: bytes
    """Of a stream: all its events."""


class Begun(msgspec.Struct, frozen=True):
    """Nobody had it: who asked owns it now."""


class InProgress(msgspec.Struct, frozen=True):
    """Another request with this key has not ended."""

    running_s: float
    """Since when."""


class Finished(msgspec.Struct, frozen=True):
    sealed: bytes


class TooLarge(msgspec.Struct, frozen=True):
    """It ended well, and its outcome is more than is stored."""


class Reused(msgspec.Struct, frozen=True):
    """The key belongs to a request with another body."""


class NoRoom(msgspec.Struct, frozen=True):
    """It ended well, and its tenant had as much stored as it may."""


Found = Begun | InProgress | Finished | TooLarge | NoRoom | Reused


class OutcomeStore(Protocol):
    """Owns who runs which request, and what came of it. Every method may raise `StoreUnavailable`.

    All but `begin` tell whether the record was `owner`'s; if it was not, they change nothing.
    """

    async def begin(self, mark: Mark, owner: str) -> Found:
        """Of many that ask at once, one has `Begun`. `owner` is never used for two requests."""

    async def renew(self, mark: Mark, owner: str) -> bool:
        """The lease, for another `LEASE_S`."""

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> Kept | None:
        """Keeps the outcome; None: that it was too large. Beyond `MAX_OUTCOMES` or `MAX_STORED_BYTES` of its
        tenant, it keeps that there was no room; what was stored may count for up to an hour too long there.

        Returns what is kept, or None.
        """

    async def fail(self, mark: Mark, owner: str) -> bool:
        """Frees the key."""
