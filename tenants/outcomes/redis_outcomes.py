"""Outcomes in Redis: one hash a record, one script a change, its time to live set by the same script.

    headrace:{<tenant>}:outcome:<key hash>   body: hash of the body; while it runs owner, since; then sealed
                                             or no_room, or neither: it was too large
    headrace:{<tenant>}:outcomes             how many were stored in each of the last 25 hours, and how much

A lease is the record's time to live. The scripts take the time from Redis.
"""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenants.bounded import bounded
from tenants.outcomes.outcome import (
    KEEP_S,
    LEASE_S,
    MAX_OUTCOMES,
    MAX_STORED_BYTES,
    Begun,
    Finished,
    Found,
    InProgress,
    Kept,
    Mark,
    NoRoom,
    Reused,
    TooLarge,
)
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_script import Argument, Script, ScriptCall, Scripts
from tenants.redis_trouble import unavailable
from tenants.store import CorruptRecord

_BEGIN, _RENEW, _FINISH, _FAIL = (
    Script("tenants.outcomes", name) for name in ("begin", "renew", "finish", "fail")
)
_KEPT: dict[object, Kept | None] = {0: None, 1: "stored", 2: "too_large", 3: "no_room"}


class RedisOutcomes:
    """An `OutcomeStore` over a client that someone else owns and closes.

    A call ends within `CALL_TIMEOUT_S`; a script that Redis forgot is told again within it.
    """

    def __init__(self, client: Redis) -> None:
        self._scripts = Scripts(client, (_BEGIN, _RENEW, _FINISH, _FAIL), CALL_TIMEOUT_S)

    async def begin(self, mark: Mark, owner: str) -> Found:
        keys = (record_key(mark),)
        return _found(await self._run(_BEGIN, keys, mark.body_hash, owner, _ms(LEASE_S)), keys[0])

    async def renew(self, mark: Mark, owner: str) -> bool:
        return await self._run(_RENEW, (record_key(mark),), owner, _ms(LEASE_S)) == 1

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> Kept | None:
        keys = (record_key(mark), stored_key(mark.tenant_id))
        outcome = () if sealed is None else (sealed,)
        bounds = (_ms(KEEP_S), MAX_OUTCOMES, MAX_STORED_BYTES)
        return _KEPT[await self._run(_FINISH, keys, owner, *bounds, *outcome)]

    async def fail(self, mark: Mark, owner: str) -> bool:
        return await self._run(_FAIL, (record_key(mark),), owner) == 1

    async def _run(self, script: Script, keys: tuple[str, ...], *args: Argument) -> object:
        try:
            async with bounded(CALL_TIMEOUT_S):
                (answer,) = await self._scripts.run([ScriptCall(script, keys, args)])
        except (RedisError, OSError) as error:
            raise unavailable(error, keys[0]) from error
        if isinstance(answer, RedisError):
            raise unavailable(answer, keys[0]) from answer
        return answer


def record_key(mark: Mark) -> str:
    return f"headrace:{{{mark.tenant_id}}}:outcome:{mark.key_hash}"


def stored_key(tenant_id: str) -> str:
    return f"headrace:{{{tenant_id}}}:outcomes"


def _found(reply: object, place: str) -> Found:
    match reply:
        case [0]:
            return Begun()
        case [1, int(running_ms)]:
            return InProgress(max(0, running_ms) / 1000)
        case [2, bytes(sealed)]:
            return Finished(sealed)
        case [3]:
            return TooLarge()
        case [4]:
            return Reused()
        case [5]:
            return NoRoom()
    raise CorruptRecord(f"a value under {place} is not ours")


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
