"""Whom shedding takes: batch before interactive, then the lighter weight, and of equals the newest."""

from __future__ import annotations

from collections import OrderedDict

from tenants.queued import Queued, Share


class ShedOrder:
    """Owns the waiting entries by standing, oldest first. O(different standings), whatever waits."""

    def __init__(self) -> None:
        self._groups: dict[tuple[bool, int], OrderedDict[str, Queued]] = {}

    def add(self, entry: Queued) -> None:
        self._groups.setdefault(entry.share.standing, OrderedDict())[entry.entry_id] = entry

    def remove(self, entry: Queued) -> None:
        """Raises KeyError if it is not there."""
        group = self._groups[entry.share.standing]
        del group[entry.entry_id]
        if not group:
            del self._groups[entry.share.standing]

    def newest_below(self, share: Share) -> Queued | None:
        """The first to be shed of those that stand lower; None: nobody does."""
        lowest = min(self._groups, default=share.standing)
        return next(reversed(self._groups[lowest].values())) if lowest < share.standing else None

    def num_below(self, share: Share) -> int:
        """All of those that stand lower."""
        return sum(len(group) for standing, group in self._groups.items() if standing < share.standing)
