"""Who holds a purse in this gateway, and how much is in it: decided once a tick from who asked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tenants.ledger.ask import Ask
from tenants.ledger.decision import reserved_cost
from tenants.ledger.grant import Standing
from tenants.offline.purse import Holder, Purse, amount_to_hold, holder_of, purse_ask

MIN_STREAK = 2
"""A purse is taken for who asked in each of so many ticks, ..."""
MAX_IDLE = 30
"""... and given back after so many without a request."""


@dataclass
class _Seen:
    """The last request of a holder, how it stood then, and in how many ticks on end it asked."""

    ask: Ask
    standing: Standing
    tick: int
    streak: int


class PursePlan(NamedTuple):
    give_back: list[Holder]
    take: list[Ask]


class Customers:
    """Owns what was seen of the holders that ask here; those that no longer do are forgotten.

    `new_id` makes the id of a purse.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._seen: dict[Holder, _Seen] = {}
        self._tick = 0

    def saw(self, ask: Ask, standing: Standing) -> None:
        """The record answered `ask`, granting or not."""
        holder = holder_of(ask)
        if holder is None:
            return
        last = self._seen.get(holder)
        streak = 1
        if last is not None and last.tick >= self._tick - 1:
            streak = last.streak + self._tick - last.tick
        self._seen[holder] = _Seen(ask, standing, self._tick, streak)

    def next_tick(self, held: Mapping[Holder, Purse], now: float) -> PursePlan:
        """Ends a tick: what to give back of what is `held`, then what to take; `now` in Unix seconds.

        Whoever's budget or day changed gives back and takes anew. A purse that would not pay for a request
        like the last one is not taken.
        """
        idle = [holder for holder, seen in self._seen.items() if seen.tick <= self._tick - MAX_IDLE]
        for holder in idle:
            del self._seen[holder]
        plan = PursePlan([holder for holder in held if holder not in self._seen], [])
        for holder, seen in self._seen.items():
            purse = held.get(holder)
            if purse is not None and not self._keeps(seen, purse, now):
                plan.give_back.append(holder)
                purse = None
            if purse is None and self._is_active(seen):
                amount = amount_to_hold(seen.ask.scopes, seen.standing, 0)
                if amount and amount >= reserved_cost(seen.ask, seen.ask.max_tokens):
                    plan.take.append(purse_ask(seen.ask, self._new_id(), amount, now))
        self._tick += 1
        return plan

    def _keeps(self, seen: _Seen, purse: Purse, now: float) -> bool:
        wanted = amount_to_hold(seen.ask.scopes, seen.standing, purse.amount)
        return purse.amount == wanted and purse.pays_at(now)

    def _is_active(self, seen: _Seen) -> bool:
        return seen.tick == self._tick and seen.streak >= MIN_STREAK
