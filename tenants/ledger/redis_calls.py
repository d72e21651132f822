"""The ledger's scripts: how they are asked, and what an error among their answers means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from tenants.bounded import bounded
from tenants.ledger.ledger import LEASE_S
from tenants.ledger.redis_messages import Message, pack
from tenants.ledger.windows import to_us
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_script import Script, ScriptCall, Scripts
from tenants.redis_trouble import unavailable
from tenants.store import CorruptRecord

WATCHED_KEY = "headrace:{ledger}:watched"
_WATCHED_S = 40 * 86_400
_LOOK_EVERY_S = LEASE_S - 1
"""Before a lease ends that was taken behind a look: each reserve moves its tenant's time by 1 µs."""
CALLS_A_PIPELINE = 100
"""Redis serves nobody else while a script runs, but others between two of them."""
_COUNTS = ("common", "rates", "money", "account")
_PARTS = {
    "reserve": (*_COUNTS, "leases", "scopes"),
    "settle": (*_COUNTS, "leases"),
    "renew": ("common", "leases"),
    "ended": ("common", "leases"),
    "standing": (*_COUNTS, "leases", "scopes"),
    "reopen": (*_COUNTS, "leases"),
    "adjust": _COUNTS,
    "watched": ("common",),
}
"""What each script begins with: no more than it needs, for all of that is made anew in every run."""

Value = TypeVar("Value")


class LedgerScripts:
    """Over a client that someone else owns and closes. `clock`, in µs, stands for Redis' own; a pipeline is
    waited for `timeout_s`.
    """

    def __init__(
        self, client: Redis, clock: Callable[[], int] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._by_name = {name: Script("tenants.ledger", *parts, name) for name, parts in _PARTS.items()}
        self._watch = Script("tenants.ledger", "watch")
        self._looked = Script("tenants.ledger", "looked")
        scripts = [*self._by_name.values(), self._watch, self._looked]
        self._scripts = Scripts(client, scripts, timeout_s)

    def call(self, name: str, tenant_id: str, message: Message) -> ScriptCall:
        return self._call(name, prefix_of(tenant_id), message)

    def watched(self, most: int) -> ScriptCall:
        """Who is due to be looked at, and the time before which none of them is due again."""
        return self._call("watched", WATCHED_KEY, {"most": most, "again_us": to_us(_LOOK_EVERY_S)})

    def watch(self, tenant_id: str) -> ScriptCall:
        """Has the reaper look at the tenant."""
        return ScriptCall(self._watch, WATCHED_KEY, (tenant_id, _WATCHED_S))

    def looked(self, tenant_id: str, again_us: int, next_end_us: int) -> ScriptCall:
        """Of who was due until `again_us`: has its next lease looked at when that ends; 0: it has none."""
        return ScriptCall(self._looked, WATCHED_KEY, (tenant_id, again_us, next_end_us))

    async def load(self) -> None:
        """Raises `StoreUnavailable`."""
        try:
            async with bounded(self._timeout_s):
                await self._scripts.load()
        except (RedisError, OSError) as error:
            raise unavailable(error, "") from error

    async def run(self, calls: Sequence[ScriptCall]) -> list[object]:
        """The answers, errors among them. Raises `StoreUnavailable` when there is none."""
        answers: list[object] = []
        for first in range(0, len(calls), CALLS_A_PIPELINE):
            try:
                async with bounded(self._timeout_s):
                    answers += await self._scripts.run(calls[first : first + CALLS_A_PIPELINE])
            except (RedisError, OSError) as error:
                raise unavailable(error, "") from error
        return answers

    def checked(self, reply: object, place: str) -> object:
        """The answer to one call. Raises `StoreUnavailable`; if Redis forgot the script, it is told again
        meanwhile.
        """
        if isinstance(reply, NoScriptError):
            self._scripts.load_soon()
        if isinstance(reply, (RedisError, OSError)):
            raise unavailable(reply, place) from reply
        return reply

    def _call(self, name: str, key: str, message: Message) -> ScriptCall:
        now = {"now": self._clock()} if self._clock else {}
        return ScriptCall(self._by_name[name], key, (pack(message | now),))


def prefix_of(tenant_id: str) -> str:
    """What the names of all keys of a tenant begin with."""
    return f"headrace:{{{tenant_id}}}:"


def parsed(reply: object, kind: type[Value], place: str) -> Value:
    """What a script packed, by schema. Raises `CorruptRecord`."""
    return _decoded(msgspec.msgpack.decode, reply, kind, place)


def json_parsed(reply: object, kind: type[Value], place: str) -> Value:
    """What was handed through a script, by schema. Raises `CorruptRecord`."""
    return _decoded(msgspec.json.decode, reply, kind, place)


def _decoded(decode: Callable[..., Value], reply: object, kind: type[Value], place: str) -> Value:
    try:
        return decode(reply, type=kind)
    except (msgspec.DecodeError, RecursionError, TypeError):
        # `from None`: the cause quotes what was found
        raise CorruptRecord(f"a value under {place} is not ours") from None


def converted(reply: object, kind: type[Value], place: str) -> Value:
    """Any other answer, by schema. Raises `CorruptRecord`."""
    try:
        return msgspec.convert(reply, kind)
    except (msgspec.ValidationError, RecursionError):
        raise CorruptRecord(f"an answer from {place} is not ours") from None
