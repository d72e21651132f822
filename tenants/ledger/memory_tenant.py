"""All that the memory ledger keeps of one tenant. The Redis ledger keeps the same in Redis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import TENANT, Ask, Scope
from tenants.ledger.decision import Take
from tenants.ledger.ledger import KEEP_USAGE_DAYS, LEASE_S, PURSE_LEASE_S, TOMBSTONE_S, Applied
from tenants.ledger.memory_rates import Rates
from tenants.ledger.output_estimate import FIRST_ESTIMATE, moved
from tenants.ledger.reservation import Held, ReservedAsk, Told, reservation_of
from tenants.ledger.settlement import Settlement
from tenants.ledger.state import ScopeState, Spend, Spends, State
from tenants.ledger.usage import Sums, sums_of
from tenants.ledger.windows import DAY_US, day_of, month_of, to_us

_LEASE_US = to_us(LEASE_S)
_PURSE_US = to_us(PURSE_LEASE_S)
_TOMBSTONE_US = to_us(TOMBSTONE_S + 3600)
"""An hour more, for tombstones are forgotten by hours."""


class MoneyWindow(NamedTuple):
    """A day or a month of the tenant's money, or of one of its keys'."""

    kind: str
    number: int
    who: str

    def has_ended(self, day: int) -> bool:
        return self.number < (day if self.kind == "day" else month_of(day))


class Opened(NamedTuple):
    reservation: ReservedAsk
    day: int
    take: Take
    scopes: tuple[str, ...]
    """Whose rates it took from, in the order of `take.rates`."""
    ends_us: int
    told: Told | None = None


class Stone(NamedTuple):
    """Of what was settled or adjusted. One that the reaper wrote knows what its correction takes back."""

    reaped: Sums | None
    day: int


@dataclass
class MemoryTenant:
    rates: dict[tuple[str, str], Rates] = field(default_factory=dict)
    estimates: dict[str, int] = field(default_factory=dict)
    money: dict[MoneyWindow, Spend] = field(default_factory=dict)
    open: dict[str, Opened] = field(default_factory=dict)
    stones: dict[tuple[int, str], Stone] = field(default_factory=dict)
    hours: dict[int, int] = field(default_factory=dict)
    """Of the tombstones: when each is forgotten."""
    usage: dict[int, dict[tuple[str, str], Sums]] = field(default_factory=dict)

    def state(self, model: str, scopes: Sequence[Scope], now_us: int) -> State:
        found = tuple(self._scope_state(scope, model, now_us) for scope in scopes)
        return State(now_us, self.estimates.get(model, FIRST_ESTIMATE), found)

    def take(self, ask: Ask, take: Take, now_us: int) -> None:
        day = day_of(now_us)
        self._forget_ended_windows(day)
        for scope, tokens in zip(ask.scopes, take.rates, strict=True):
            place = (scope.who, ask.model)
            if any(count is not None for count in tokens):
                self.rates[place] = self.rates.get(place, Rates()).taken(scope.limits, tokens, now_us)
        self._change_money(ask.key_id, day, now_us, reserved=take.cost)
        scopes = tuple(scope.who for scope in ask.scopes)
        self.open[ask.request_id] = Opened(reservation_of(ask), day, take, scopes, now_us + _LEASE_US)

    def settle(self, settlement: Settlement, now_us: int) -> Applied:
        """Whatever is reserved under this id is released, even if it was settled before."""
        self._forget_old(now_us)
        place = (settlement.hour, settlement.request_id)
        opened, stone = self.open.pop(settlement.request_id, None), self.stones.get(place)
        began = min(day_of(to_us(settlement.started_at)), day_of(now_us))
        day = opened.day if opened else stone.day if stone else began
        if opened is not None:
            self._correct_rates(opened, settlement, now_us)
            self._change_money(settlement.key_id, day, now_us, reserved=-opened.take.cost)
        if stone is not None and (stone.reaped is None or settlement.outcome == "reaped"):
            return "duplicate"
        sums = sums_of(settlement)
        self.stones[place] = Stone(sums if settlement.outcome == "reaped" else None, day)
        self.hours[settlement.hour] = now_us + _TOMBSTONE_US
        self._use(settlement, sums.minus(stone.reaped) if stone and stone.reaped else sums, day, now_us)
        return "corrected" if stone else "applied"

    def renew(self, request_id: str, told: Told, now_us: int) -> None:
        if (opened := self.open.get(request_id)) is not None:
            lease_us = _PURSE_US if opened.reservation.is_purse else _LEASE_US
            self.open[request_id] = opened._replace(told=told, ends_us=now_us + lease_us)

    def ended(self, now_us: int) -> list[Opened]:
        """Reservations whose lease has ended, the oldest lease first."""
        found = (opened for opened in self.open.values() if opened.ends_us <= now_us)
        return sorted(found, key=lambda opened: (opened.ends_us, opened.reservation.request_id))

    def reopen(self, held: Held, now_us: int) -> None:
        """It takes nothing of the rates, which have drained meanwhile."""
        ask = held.ask
        self._forget_old(now_us)
        if ask.request_id in self.open or (held.hour, ask.request_id) in self.stones:
            return
        day = min(held.day, day_of(now_us))
        self._change_money(ask.key_id, day, now_us, reserved=held.cost)
        take = Take(ask.max_tokens, held.cost, ())
        self.open[ask.request_id] = Opened(reservation_of(ask), day, take, (), now_us + _LEASE_US)

    def spends(self, who: str, now_us: int) -> Spends:
        day, month = (self.money.get(window, Spend()) for window in _windows(who, day_of(now_us)))
        return Spends(now_us, day, month)

    def adjust(self, adjustment: Adjustment, now_us: int) -> Applied:
        self._forget_old(now_us)
        place = (adjustment.hour, adjustment.adjustment_id)
        if place in self.stones:
            return "duplicate"
        day = min(day_of(to_us(adjustment.at)), day_of(now_us))
        self.stones[place] = Stone(None, day)
        self.hours[adjustment.hour] = now_us + _TOMBSTONE_US
        window = next(one for one in _windows(adjustment.who, day) if one.kind == adjustment.window)
        if not window.has_ended(day_of(now_us)):
            spend = self.money.get(window, Spend())
            self.money[window] = spend.adjusted(credit=adjustment.credit, forgiven=adjustment.forgiven)
        return "applied"

    def _scope_state(self, scope: Scope, model: str, now_us: int) -> ScopeState:
        who, day = scope.who, day_of(now_us)
        rates = self.rates.get((who, model), Rates())
        return ScopeState(
            rates.levels(scope.limits, now_us),
            sum(1 for opened in self.open.values() if opened.ends_us > now_us and _is_of(opened, who)),
            *(self.money.get(window, Spend()) for window in _windows(who, day)),
        )

    def _correct_rates(self, opened: Opened, settlement: Settlement, now_us: int) -> None:
        """The truth in the place of what was taken."""
        for who, tokens in zip(opened.scopes, opened.take.rates, strict=True):
            if (rates := self.rates.get((who, settlement.model))) is not None:
                self.rates[who, settlement.model] = rates.corrected(tokens, settlement.took, now_us)

    def _change_money(self, key_id: str, day: int, now_us: int, *, spent: int = 0, reserved: int = 0) -> None:
        for who in (TENANT, key_id):
            for window in _windows(who, day):
                if not window.has_ended(day_of(now_us)):
                    spend = self.money.get(window, Spend())
                    self.money[window] = spend.changed(spent=spent, reserved=reserved)

    def _use(self, settlement: Settlement, added: Sums, day: int, now_us: int) -> None:
        self._change_money(settlement.key_id, day, now_us, spent=added.cost)
        if any(added):
            rows = self.usage.setdefault(day_of(to_us(settlement.started_at)), {})
            place = (settlement.model, settlement.key_id)
            rows[place] = rows.get(place, Sums()).plus(added)
        if settlement.outcome == "finished":
            estimate = self.estimates.get(settlement.model, FIRST_ESTIMATE)
            self.estimates[settlement.model] = moved(estimate, settlement.completion_tokens // settlement.n)

    def _forget_ended_windows(self, day: int) -> None:
        if MoneyWindow("day", day, TENANT) not in self.money:
            for window in [window for window in self.money if window.has_ended(day)]:
                del self.money[window]

    def _forget_old(self, now_us: int) -> None:
        for hour in [hour for hour, until_us in self.hours.items() if until_us <= now_us]:
            del self.hours[hour]
            for place in [place for place in self.stones if place[0] == hour]:
                del self.stones[place]
        for day in [day for day in self.usage if day < now_us // DAY_US - KEEP_USAGE_DAYS]:
            del self.usage[day]


def _is_of(opened: Opened, who: str) -> bool:
    """A purse is no request."""
    return not opened.reservation.is_purse and who in (TENANT, opened.reservation.key_id)


def _windows(who: str, day: int) -> Iterator[MoneyWindow]:
    yield MoneyWindow("day", day, who)
    yield MoneyWindow("month", month_of(day), who)
