"""Which replica holds which prefix: claims that replicas publish and gateways look up before they route.

Every `INDEX_EVERY`-th block of a chain is indexed, under its block hash: the chain's root is in the hash,
so an entry tells nothing to another tenant and never steers to KV of another revision. An entry holds
the *incarnations* of its holders, 4-byte numbers that a replica draws anew at each start. Who looks up names
the incarnations that it is linked to, so that a claim of a dead one counts for nothing at once; one that no
longer beats is taken out of entries as others publish.

A claim is a hint. A wrong one costs a prefill that was thought to be saved, never a wrong token: what is
served depends on the replica's own prefix cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from cluster.link import Abort

INDEX_EVERY = 4
HEARTBEAT_S = 1.0
INCARNATION_TTL_S = 3.0
"""An incarnation that has not beaten for so long is dead."""
ENTRY_TTL_S = 3600
"""Since the last holder told of the block; a dead incarnation's number is kept from reuse for as long."""
ABORTS_TTL_S = 30
MAX_ABORTS = 10_000
"""Left for one incarnation; the oldest go first."""
MAX_HOLDERS = 1024
"""Of one block; who has told of it least recently goes first."""
MAX_DEAD = 1000
"""Told with one heartbeat, the longest dead first."""

IndexState = Literal["exact", "degraded", "off"]
"""exact: the last whole round of the digest found all as it was told. degraded: something had to be
repaired, or may have to be. off: no index can be asked."""


class IndexUnavailable(Exception):
    """The index cannot be asked or told at the moment."""


class Changes(NamedTuple):
    """What became of one root's indexed blocks, by block hash; each is in one of the two at most."""

    root: bytes
    stored: tuple[bytes, ...] = ()
    """Held now, parents first. Told again for blocks that are still held: it refreshes them."""
    evicted: tuple[bytes, ...] = ()
    """Held no more, children first."""


class HeartbeatReply(NamedTuple):
    """What a heartbeat is answered."""

    was_alive: bool
    """False: the index did not know this incarnation (any more), so that its claims are lost or ignored."""
    dead: frozenset[int]
    """Incarnations that may be taken out of entries on the way."""
    aborts: tuple[Abort, ...]
    """Left for this incarnation by gateways that cannot reach it."""


class PrefixIndex(Protocol):
    """One cluster's index. All methods raise `IndexUnavailable`; each call is bounded."""

    async def claim(self, incarnation: int) -> bool:
        """Takes the number for a new replica, which beats from now on. False: it is another one's."""
        ...

    async def beat(self, incarnation: int) -> HeartbeatReply: ...

    async def publish(self, incarnation: int, changes: Sequence[Changes], dead: frozenset[int]) -> int:
        """Tells changes; repeating them is harmless. Returns how many claims it really added or removed:
        all of news, and none of a digest unless something was lost. Each block told is refreshed with all
        its holders, but for the dead ones, which are dropped. A call that fails may have told a part; of
        more than a few thousand blocks it may not end in time.
        """
        ...

    async def look_up(
        self, root: bytes, block_hashes: Sequence[bytes], incarnations: Sequence[int]
    ) -> Mapping[int, int]:
        """Blocks of the chain's beginning that each incarnation claims, a multiple of `INDEX_EVERY`.

        `block_hashes` are those of all full blocks. An incarnation without a claim may be left out.
        """
        ...

    async def leave_aborts(self, incarnation: int, aborts: Sequence[Abort]) -> None:
        """For a replica that cannot be called any more: it reads them with its next heartbeat.

        They are told once: if the answer to that heartbeat is lost, the requests run out.
        """
        ...


def indexed(block_hashes: Sequence[bytes]) -> Sequence[bytes]:
    """Those of a chain's blocks that have entries."""
    return block_hashes[INDEX_EVERY - 1 :: INDEX_EVERY]
