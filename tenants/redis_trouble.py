"""What went wrong when Redis did not answer as it should, in the record's own words."""

from __future__ import annotations

import re

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from tenants.store import CorruptRecord, StoreUnavailable

_REFUSALS = (
    "OOM",
    "ACL",
    "NOPERM",
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "can't run this command",
    "not allowed when used memory",
)
"""In the text of an error that a script met: Redis 6.2 wraps it, later ones do not."""
_CORRUPT = re.compile(r"CORRUPT (\w+)")
_RUNTIME_ERROR = re.compile(r"user_script:\d+: ")
"""A script stumbled over a value; errors of commands that it ran say where, too, but not so."""


def unavailable(error: RedisError | OSError, place: str) -> StoreUnavailable:
    """For an answer that is an error, or for none. `place` says where in Redis it happened; junk there is
    `CorruptRecord`, which names the place and never the content.
    """
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        return StoreUnavailable("Redis did not answer in time", "timeout")
    if isinstance(error, ResponseError):
        return _refused(str(error), place)
    if isinstance(error, (AuthenticationError, BusyLoadingError)):
        return StoreUnavailable(f"Redis refused: {error}", "refused")
    return StoreUnavailable(f"Redis cannot be reached ({type(error).__name__})", "unreachable")


def _refused(text: str, place: str) -> StoreUnavailable:
    if any(word in text for word in _REFUSALS):
        return StoreUnavailable(f"Redis refused: {text}", "refused")
    if found := _CORRUPT.search(text):
        return CorruptRecord(f"a value under {place}{found[1]} is not ours")
    if "WRONGTYPE" in text or _RUNTIME_ERROR.search(text):
        return CorruptRecord(f"a key under {place} holds something else than ours")
    return StoreUnavailable(f"Redis refused: {text}", "refused")
