"""What an error of Redis means: a trouble of all tenants, or junk of one. Texts as the client raises them."""

from __future__ import annotations

import builtins

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from tenants.redis_trouble import unavailable
from tenants.store import CorruptRecord, Trouble

PLACE = "headrace:{acme}:"
# Redis ≥ 7 says behind an error of a command where the script was, Redis 6.2 before it.
BEHIND = " script: on @user_script:14."
BEFORE = "Error running script (call to f_0): @user_script:14: @user_script: 14: -"

TROUBLES: list[tuple[RedisError | OSError, Trouble]] = [
    (ConnectionError("Connection refused"), "unreachable"),
    (ConnectionRefusedError(), "unreachable"),
    (TimeoutError("Timeout connecting"), "timeout"),
    (builtins.TimeoutError(), "timeout"),
    (BusyLoadingError("Redis is loading the dataset in memory"), "refused"),
    (AuthenticationError("Authentication required."), "refused"),
    (NoScriptError("No matching script."), "refused"),
    (ReadOnlyError("You can't write against a read only replica." + BEHIND), "refused"),
    (OutOfMemoryError("command not allowed when used memory > 'maxmemory'." + BEHIND), "refused"),
    (NoPermissionError("User default has no permissions to run the 'evalsha' command"), "refused"),
    (ResponseError("ACL failure in script: User default has no permissions" + BEHIND), "refused"),
    (ResponseError("MISCONF Errors writing to the AOF file: No space left on device" + BEHIND), "refused"),
    (ResponseError("NOREPLICAS Not enough good replicas to write." + BEHIND), "refused"),
    (ResponseError(BEFORE + "READONLY You can't write against a read only replica."), "refused"),
    (ResponseError(BEFORE + "OOM command not allowed when used memory > 'maxmemory'."), "refused"),
    (ResponseError(BEFORE + "NOREPLICAS Not enough good replicas to write."), "refused"),
    (ResponseError("some other day"), "refused"),
]


@pytest.mark.parametrize(("error", "trouble"), TROUBLES, ids=lambda value: str(value)[:40])
def test_the_record_s_own_trouble(error: RedisError | OSError, trouble: Trouble) -> None:
    found = unavailable(error, PLACE)
    assert not isinstance(found, CorruptRecord)
    assert found.trouble == trouble


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "WRONGTYPE Operation against a key holding the wrong kind of value" + BEHIND,
        "user_script:14: attempt to index a boolean value" + BEHIND,
        "user_script:3: CORRUPT money" + BEHIND,
    ],
)
def test_junk_is_its_tenant_s_and_is_not_told(text: str) -> None:
    found = unavailable(ResponseError(text), PLACE)
    assert isinstance(found, CorruptRecord)
    assert PLACE in str(found)
    assert "attempt" not in str(found)
