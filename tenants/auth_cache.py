"""What a process remembers of keys that it looked up: two bounded tables, told the time.

Found and unknown keys are kept apart, so a flood of invented keys evicts no tenant's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from tenants.store import Account


class CachedAccount(NamedTuple):
    """What the store said at `at` (seconds): an account, or that it knows no such key."""

    account: Account | None
    at: float

    def is_younger_than(self, age_s: float, now: float) -> bool:
        """A clock that was set back makes an entry old, not young."""
        return 0 <= now - self.at < age_s


class AuthCache:
    """Least recently used out first; each of the two tables holds at most `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        if max_entries < 1:
            raise ValueError(f"max_entries must be at least 1, not {max_entries}")
        self._max_entries = max_entries
        self._found: OrderedDict[str, CachedAccount] = OrderedDict()
        self._unknown: OrderedDict[str, CachedAccount] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found) + len(self._unknown)

    def get(self, key_hash: str) -> CachedAccount | None:
        """The last that is known of this key, however old."""
        for table in (self._found, self._unknown):
            if key_hash in table:
                table.move_to_end(key_hash)
                return table[key_hash]
        return None

    def put(self, key_hash: str, seen: CachedAccount) -> None:
        self._found.pop(key_hash, None)
        self._unknown.pop(key_hash, None)
        table = self._unknown if seen.account is None else self._found
        table[key_hash] = seen
        if len(table) > self._max_entries:
            table.popitem(last=False)

    def drop(self, matches: Callable[[Account], bool]) -> None:
        """Forgets the found keys that match."""
        for key_hash, seen in list(self._found.items()):
            if seen.account is not None and matches(seen.account):
                del self._found[key_hash]
