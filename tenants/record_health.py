"""The breaker as requests see it: a call that is refused while it is open, and reports how it went."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tenants.breaker import Breaker
from tenants.store import Account, CorruptRecord, StoreUnavailable, Trouble

Value = TypeVar("Value")


class RecordHealth:
    """One per process, so that all its calls of the record share one breaker. `clock`: steady seconds."""

    def __init__(self, breaker: Breaker, clock: Callable[[], float]) -> None:
        self._breaker = breaker
        self._clock = clock

    @property
    def trouble(self) -> Trouble | None:
        return self._breaker.trouble

    def failed(self, trouble: Trouble) -> None:
        self._breaker.failed(trouble, self._clock())

    async def ask(self, call: Callable[[], Awaitable[Value]]) -> Value:
        """What `call` returns. Raises `StoreUnavailable`, without calling while the breaker is open.

        A `CorruptRecord` is one tenant's trouble and opens nothing.
        """
        if self.trouble is not None:
            raise StoreUnavailable("the record is not asked while it is in trouble", self.trouble)
        try:
            return await call()
        except CorruptRecord:
            raise
        except StoreUnavailable as error:
            self.failed(error.trouble)
            raise


class KeyFinder(Protocol):
    async def find_key(self, key_hash: str) -> Account | None:
        """Raises `StoreUnavailable`."""


class GuardedKeys:
    """A `KeyFinder` that does not ask while the breaker is open."""

    def __init__(self, store: KeyFinder, health: RecordHealth) -> None:
        self._store = store
        self._health = health

    async def find_key(self, key_hash: str) -> Account | None:
        return await self._health.ask(lambda: self._store.find_key(key_hash))
