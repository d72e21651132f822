"""Requests that their clients named by an `Idempotency-Key`: the values, and the protocol of their store.

A request is *running* while its owner renews a lease, and then *finished* or *too large* for `KEEP_S`.
One that failed is forgotten, and so is one whose owner has died: the next that asks is the new owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

LEASE_S = 10.0
"""An owner that does not renew for so long has died."""
RENEW_EVERY_S = 2.0
KEEP_S = 24 * 3600.0
MAX_OUTCOME_BYTES = 256 * 1024
"""Of the answer's body."""


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


class Running(msgspec.Struct, frozen=True):
    """Another request with this key has not ended."""

    running_s: float
    """Since when."""


class Finished(msgspec.Struct, frozen=True):
    sealed: bytes


class TooLarge(msgspec.Struct, frozen=True):
    """It ended well, and its outcome is more than is stored."""


class Reused(msgspec.Struct, frozen=True):
    """The key belongs to a request with another body."""


Found = Begun | Running | Finished | TooLarge | Reused


class OutcomeStore(Protocol):
    """Owns who runs which request, and what came of it. Every method may raise `StoreUnavailable`.

    All but `begin` tell whether the record was `owner`'s; if it was not, they change nothing.
    """

    async def begin(self, mark: Mark, owner: str) -> Found:
        """Of many that ask at once, one has `Begun`. `owner` is never used for two requests."""

    async def renew(self, mark: Mark, owner: str) -> bool:
        """The lease, for another `LEASE_S`."""

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> bool:
        """Keeps the outcome; None: that it was too large."""

    async def fail(self, mark: Mark, owner: str) -> bool:
        """Frees the key."""
