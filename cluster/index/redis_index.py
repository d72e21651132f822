"""The prefix index in Redis. Every operation is one script, which takes the time from Redis.

Layout, all of it with a TTL:
    px:{<root, first 4 bytes in hex>}:<block hash>   the holders' incarnations, 4 bytes each
    px:incarnations                                  sorted set: incarnation → time of its last beat
    px:aborts:<incarnation in hex>                   list of `Abort`, msgpack
The root in a key only keeps a root's entries in one slot; the block hash says everything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError, RedisError, ResponseError

from cluster.index.prefix_index import (
    ABORTS_TTL_S,
    ENTRY_TTL_S,
    INCARNATION_TTL_S,
    INDEX_EVERY,
    MAX_ABORTS,
    MAX_DEAD,
    MAX_HOLDERS,
    Changes,
    HeartbeatReply,
    IndexUnavailable,
    indexed,
)
from cluster.link import Abort
from tenants.bounded import bounded
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_script import Argument, Script, ScriptCall, Scripts

log = logging.getLogger("headrace.prefix_index")

INCARNATIONS_KEY = "px:incarnations"
BLOCKS_PER_SCRIPT = 500
"""Stored, and as many evicted: Redis serves nobody else while a script runs, here about 2 ms."""
_INCARNATION_BYTES = 4

Value = TypeVar("Value")


class RedisPrefixIndex:
    """A `PrefixIndex` over a client that someone else owns and closes.

    A call ends within `CALL_TIMEOUT_S`; scripts that Redis does not know (any more) are loaded within it.
    """

    def __init__(self, client: Redis) -> None:
        self._claim, self._beat, self._publish, self._look_up, self._leave = all_five = [
            Script("cluster.index", name) for name in ("claim", "beat", "publish", "look_up", "leave")
        ]
        self._scripts = Scripts(client, all_five, CALL_TIMEOUT_S)
        self._has_told_of_a_bad_abort = False

    async def claim(self, incarnation: int) -> bool:
        (claimed,) = await self._ask([_call(self._claim, INCARNATIONS_KEY, pack([incarnation]), ENTRY_TTL_S)])
        return _read(claimed, int) == 1

    async def beat(self, incarnation: int) -> HeartbeatReply:
        limits = (INCARNATION_TTL_S, ENTRY_TTL_S, MAX_DEAD, MAX_ABORTS)
        keys = (INCARNATIONS_KEY, aborts_key(incarnation))
        (reply,) = await self._ask([_call(self._beat, keys, pack([incarnation]), *limits)])
        was_alive, dead, aborts = _read(reply, tuple[int, list[bytes], list[bytes]])
        return HeartbeatReply(
            was_alive=was_alive == 1,
            dead=frozenset(_unpack(member) for member in dead if len(member) == _INCARNATION_BYTES),
            aborts=tuple(self._decoded(aborts)),
        )

    async def publish(self, incarnation: int, changes: Sequence[Changes], dead: frozenset[int]) -> int:
        who = (pack([incarnation]), pack(dead))
        calls: list[ScriptCall] = []
        for root, stored, evicted in changes:
            for start in range(0, max(len(stored), len(evicted)), BLOCKS_PER_SCRIPT):
                part = slice(start, start + BLOCKS_PER_SCRIPT)
                hashes = (b"".join(stored[part]), b"".join(evicted[part]))
                key = entries_of(root)
                calls.append(_call(self._publish, key, *who, *hashes, ENTRY_TTL_S, MAX_HOLDERS))
        return sum(_read(reply, int) for reply in await self._ask(calls))

    async def look_up(
        self, root: bytes, block_hashes: Sequence[bytes], incarnations: Sequence[int]
    ) -> Mapping[int, int]:
        (reply,) = await self._ask([self._look_up_call(root, block_hashes, incarnations)])
        return self.read_look_up(reply)

    def queue_look_up(
        self, pipeline: Pipeline, root: bytes, block_hashes: Sequence[bytes], incarnations: Sequence[int]
    ) -> None:
        """`look_up` as one command of the caller's pipeline, which is run with `raise_on_error=False`."""
        script, keys, args = self._look_up_call(root, block_hashes, incarnations)
        script.queue(pipeline, keys, *args)

    def read_look_up(self, reply: object) -> Mapping[int, int]:
        """What `look_up` returns, from the answer to the command of `queue_look_up`.

        Raises `IndexUnavailable` for an error. If Redis forgot the script, it is told again meanwhile.
        """
        if isinstance(reply, NoScriptError):
            self._scripts.load_soon()
        claims = _read(reply, list[tuple[bytes, int]])
        return {_unpack(incarnation): depth * INDEX_EVERY for incarnation, depth in claims}

    async def leave_aborts(self, incarnation: int, aborts: Sequence[Abort]) -> None:
        rows = map(msgspec.msgpack.encode, aborts)
        call = _call(self._leave, aborts_key(incarnation), ABORTS_TTL_S, MAX_ABORTS, *rows)
        (reply,) = await self._ask([call])
        _read(reply, int)

    def _look_up_call(
        self, root: bytes, block_hashes: Sequence[bytes], incarnations: Sequence[int]
    ) -> ScriptCall:
        hashes = b"".join(indexed(block_hashes))
        return _call(self._look_up, entries_of(root), hashes, pack(incarnations), MAX_HOLDERS)

    async def _ask(self, calls: Sequence[ScriptCall]) -> list[object]:
        """The answers, errors among them: one round trip, and more if Redis did not know a script."""
        try:
            async with bounded(CALL_TIMEOUT_S):
                return await self._scripts.run(calls)
        except (RedisError, OSError, TimeoutError) as error:
            raise IndexUnavailable(f"Redis cannot be asked ({type(error).__name__})") from error

    def _decoded(self, rows: Iterable[bytes]) -> Iterable[Abort]:
        for row in rows:
            try:
                yield msgspec.msgpack.decode(row, type=Abort)
            except (msgspec.DecodeError, RecursionError):
                if not self._has_told_of_a_bad_abort:
                    log.error("a row under px:aborts is no Abort; it and others like it are dropped")
                self._has_told_of_a_bad_abort = True


def _call(script: Script, keys: str | tuple[str, ...], *args: Argument) -> ScriptCall:
    return ScriptCall(script, keys, args)


def entries_of(root: bytes) -> str:
    """What the keys of the root's entries begin with; the block hash follows."""
    return f"px:{{{root[:4].hex()}}}:"


def aborts_key(incarnation: int) -> str:
    return f"px:aborts:{incarnation:08x}"


def pack(incarnations: Iterable[int]) -> bytes:
    """Raises OverflowError for one that is not 0 … 2^32 - 1."""
    return b"".join(number.to_bytes(_INCARNATION_BYTES, "big") for number in incarnations)


def _unpack(incarnation: bytes) -> int:
    return int.from_bytes(incarnation, "big")


def _read(reply: object, kind: type[Value]) -> Value:
    """The answer to one command, by schema. Raises `IndexUnavailable`."""
    if isinstance(reply, ResponseError):
        raise IndexUnavailable(f"Redis refused: {reply}") from reply
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise IndexUnavailable(f"Redis answered something else than was asked: {error}") from error
