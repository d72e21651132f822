"""Outcomes in Redis: one hash a record, one script a change, its time to live set by the same script.

    headrace:{<tenant>}:outcome:<key hash>   body: hash of the body; while it runs owner, since; then sealed

A lease is the record's time to live. The scripts take the time from Redis.
"""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenants.outcomes.outcome import (
    KEEP_S,
    LEASE_S,
    Begun,
    Finished,
    Found,
    Mark,
    Reused,
    Running,
    TooLarge,
)
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_script import Argument, Call, Script, Scripts
from tenants.store import CorruptRecord, StoreUnavailable

_BEGIN, _RENEW, _FINISH, _FAIL = (
    Script("tenants.outcomes", name) for name in ("begin", "renew", "finish", "fail")
)


class RedisOutcomes:
    """An `OutcomeStore` over a client that someone else owns and closes.

    A call ends within `CALL_TIMEOUT_S`; a script that Redis forgot is told again within it.
    """

    def __init__(self, client: Redis) -> None:
        self._scripts = Scripts(client, (_BEGIN, _RENEW, _FINISH, _FAIL), CALL_TIMEOUT_S)

    async def begin(self, mark: Mark, owner: str) -> Found:
        return _found(await self._run(_BEGIN, mark, mark.body_hash, owner, _ms(LEASE_S)))

    async def renew(self, mark: Mark, owner: str) -> bool:
        return await self._run(_RENEW, mark, owner, _ms(LEASE_S)) == 1

    async def finish(self, mark: Mark, owner: str, sealed: bytes | None) -> bool:
        outcome = () if sealed is None else (sealed,)
        return await self._run(_FINISH, mark, owner, _ms(KEEP_S), *outcome) == 1

    async def fail(self, mark: Mark, owner: str) -> bool:
        return await self._run(_FAIL, mark, owner) == 1

    async def _run(self, script: Script, mark: Mark, *args: Argument) -> object:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                (answer,) = await self._scripts.run([Call(script, record_key(mark), args)])
        except TimeoutError:
            raise StoreUnavailable("Redis did not answer in time", "timeout") from None
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis cannot be reached ({type(error).__name__})") from error
        if isinstance(answer, Exception):
            raise _refused(answer) from answer
        return answer


def record_key(mark: Mark) -> str:
    return f"headrace:{{{mark.tenant_id}}}:outcome:{mark.key_hash}"


def _refused(error: Exception) -> StoreUnavailable:
    if "WRONGTYPE" in str(error):
        return CorruptRecord("a key of outcomes holds another type than ours", "refused")
    return StoreUnavailable(f"Redis refused: {error}", "refused")


def _found(reply: object) -> Found:
    match reply:
        case [0]:
            return Begun()
        case [1, int(running_ms)]:
            return Running(max(0, running_ms) / 1000)
        case [2, bytes(sealed)]:
            return Finished(sealed)
        case [3]:
            return TooLarge()
        case [4]:
            return Reused()
    raise CorruptRecord("Redis answered something else than was asked", "refused")


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
