"""The ledger, slow and obvious: a list of all that ever happened, and every number counted from it anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

import msgspec

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Gauge, Granted, Refused, Standing
from tenants.ledger.ledger import LEASE_S, PURSE_LEASE_S, Applied
from tenants.ledger.reservation import Held
from tenants.ledger.settlement import Progress, Settlement
from tenants.ledger.state import Spend, Spends
from tenants.ledger.usage import UsageRow
from tenants.terms import Limits

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIELDS = ("requests_per_min", "input_tokens_per_min", "output_tokens_per_min")
KINDS = ("requests", "input_tokens", "output_tokens")


class Taken(NamedTuple):
    at: int
    ask: Ask
    max_tokens: int
    cost: int
    estimate: int
    paid_at: int
    """In the windows that it is charged to."""


class Settled(NamedTuple):
    at: int
    settlement: Settlement
    applied: Applied


class Renewed(NamedTuple):
    at: int
    progress: Progress


class Adjusted(NamedTuple):
    at: int
    adjustment: Adjustment


def instant(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def window_of(us: int, window: str) -> str:
    return instant(us).strftime("%Y-%m-%d" if window == "day" else "%Y-%m")


def burst(limits: Limits, kind: int) -> int:
    return min(10**8, max(1, floor(Fraction(getattr(limits, FIELDS[kind]) * limits.burst_s, 60))))


class ModelLedger:
    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._events: list[Any] = []

    # what happened

    def _of(self, kind: type, tenant_id: str) -> list[Any]:
        def tenant(event: Any) -> str:
            return next(v.tenant_id for v in event if hasattr(v, "tenant_id"))

        return [event for event in self._events if type(event) is kind and tenant(event) == tenant_id]

    def _open(self, tenant_id: str) -> list[Taken]:
        """Not settled since they were taken."""
        taken = self._of(Taken, tenant_id)
        return [one for one in taken if not self._settled_since(one)]

    def _settled_since(self, taken: Taken) -> Settled | None:
        later = self._events[self._events.index(taken) :]
        for event in later:
            if type(event) is Settled and event.settlement.request_id == taken.ask.request_id:
                return event
        return None

    def _lease_ends(self, taken: Taken) -> int:
        renewed = self._last_renewal(taken)
        if renewed is None:
            return taken.at + int(LEASE_S * 10**6)
        return renewed.at + int((PURSE_LEASE_S if taken.ask.is_purse else LEASE_S) * 10**6)

    def _last_renewal(self, taken: Taken) -> Renewed | None:
        found = [
            event
            for event in self._of(Renewed, taken.ask.tenant_id)
            if event.progress.request_id == taken.ask.request_id
        ]
        return found[-1] if found else None

    # what it means

    def _leases(self, tenant_id: str, key_id: str | None) -> int:
        return sum(
            1
            for one in self._open(tenant_id)
            if not one.ask.is_purse
            and key_id in (None, one.ask.key_id)
            and self._lease_ends(one) > self._clock()
        )

    def _estimate(self, tenant_id: str, model: str) -> int:
        estimate = 256
        for event in self._of(Settled, tenant_id):
            one = event.settlement
            if one.outcome == "finished" and one.model == model and event.applied != "duplicate":
                step = max(1, estimate // 64)
                answer = one.completion_tokens // one.n
                estimate = estimate + 9 * step if answer > estimate else max(1, estimate - step)
        return estimate

    def _level(self, tenant_id: str, model: str, scope: Scope, kind: int) -> Fraction:
        """Tokens, by everything that was ever taken and given back."""
        level, rate, then = Fraction(0), None, 0
        for at, tokens, new_rate in self._flow(tenant_id, model, scope.key_id, kind):
            rate = new_rate or rate
            level = max(Fraction(0), level - Fraction(rate * (at - then), 60 * 10**6)) if rate else level
            level, then = max(Fraction(0), level + tokens), at
        rate = getattr(scope.limits, FIELDS[kind]) or rate
        if rate is None:
            return level
        return max(Fraction(0), level - Fraction(rate * (self._clock() - then), 60 * 10**6))

    def _flow(
        self, tenant_id: str, model: str, key_id: str | None, kind: int
    ) -> Iterator[tuple[int, int, int | None]]:
        """(when, tokens, rate if it was told) of each take from a limit, and of each correction of one."""
        for event in self._events:
            if type(event) is Taken and (event.ask.tenant_id, event.ask.model) == (tenant_id, model):
                for scope in event.ask.scopes:
                    if scope.key_id == key_id and getattr(scope.limits, FIELDS[kind]) is not None:
                        tokens = self._wants(event.ask, scope, event.max_tokens, event.estimate)[kind]
                        yield event.at, tokens, getattr(scope.limits, FIELDS[kind])
            if type(event) is Settled and event.settlement.tenant_id == tenant_id:
                for taken in self._of(Taken, tenant_id):
                    if taken.ask.model == model and self._settled_since(taken) is event:
                        for scope in taken.ask.scopes:
                            if scope.key_id == key_id and getattr(scope.limits, FIELDS[kind]) is not None:
                                took = self._wants(taken.ask, scope, taken.max_tokens, taken.estimate)[kind]
                                yield event.at, self._truth(event.settlement)[kind] - took, None

    @staticmethod
    def _wants(ask: Ask, scope: Scope, max_tokens: int, estimate: int) -> tuple[int, int, int]:
        output = ask.n * min(max_tokens, estimate)
        if scope.limits.output_tokens_per_min is not None:
            output = min(output, burst(scope.limits, 2))
        return 1, ask.prompt_tokens, output

    @staticmethod
    def _truth(settlement: Settlement) -> tuple[int, int, int]:
        if settlement.outcome == "unserved":
            return 0, 0, 0
        return 1, settlement.prompt_tokens - settlement.cached_tokens, settlement.completion_tokens

    def _spent(self, tenant_id: str, key_id: str | None, window: str) -> int:
        """In the window of now: of each settled request what counts in the end."""
        now = window_of(self._clock(), window)
        return sum(
            one.cost
            for one, day in self._final(tenant_id)
            if key_id in (None, one.key_id) and window_of(day, window) == now
        )

    def _final(self, tenant_id: str) -> Iterator[tuple[Settlement, int]]:
        """Each settled request's last word, and an instant in the windows that it is charged to."""
        events = [event for event in self._of(Settled, tenant_id) if event.applied != "duplicate"]
        for one_id in {event.settlement.request_id for event in events}:
            last = [event for event in events if event.settlement.request_id == one_id][-1].settlement
            if last.outcome == "unserved" or not (last.prompt_tokens or last.completion_tokens):
                continue
            taken = [one for one in self._of(Taken, tenant_id) if one.ask.request_id == one_id]
            first = next(event for event in events if event.settlement.request_id == one_id)
            yield last, taken[0].paid_at if taken else min(round(last.started_at * 10**6), first.at)

    def _reserved(self, tenant_id: str, key_id: str | None, window: str) -> int:
        now = window_of(self._clock(), window)
        return sum(
            one.cost
            for one in self._open(tenant_id)
            if key_id in (None, one.ask.key_id) and window_of(one.paid_at, window) == now
        )

    def _adjustments(self, tenant_id: str, key_id: str | None, window: str, action: str) -> list[int]:
        """Their amounts, in the window of now."""
        now = window_of(self._clock(), window)
        return [
            adjustment.amount
            for at, adjustment in self._of(Adjusted, tenant_id)
            if (adjustment.key_id, adjustment.window, adjustment.action) == (key_id, window, action)
            and window_of(round(adjustment.at * 10**6), window) == now
        ]

    def _credit(self, *where: Any) -> int:
        return sum(self._adjustments(*where, "top_up"))

    def _used(self, *where: Any) -> int:
        return max(0, self._spent(*where) - max(self._adjustments(*where, "reset"), default=0))

    def _available(self, tenant_id: str, scope: Scope, window: str) -> int:
        where = (tenant_id, scope.key_id, window)
        budget = getattr(scope.limits, f"budget_{window}")
        return budget + self._credit(*where) - self._used(*where) - self._reserved(*where)

    # the protocol

    async def reserve(self, ask: Ask) -> Granted | Refused:
        estimate = self._estimate(ask.tenant_id, ask.model)
        refusal, max_tokens = self._refusal(ask, estimate)
        if refusal is not None:
            kind, key_id, retry_us, is_never = refusal
            return Refused(
                kind=kind,
                key_id=key_id,
                retry_after_s=None if retry_us is None else retry_us / 10**6,
                is_never=is_never,
                standing=await self.standing(ask.tenant_id, ask.model, ask.scopes),
            )
        cost = self._cost(ask, max_tokens)
        self._events.append(Taken(self._clock(), ask, max_tokens, cost, estimate, self._clock()))
        standing = await self.standing(ask.tenant_id, ask.model, ask.scopes)
        return Granted(max_tokens=max_tokens, reserved_cost=cost, standing=standing)

    @staticmethod
    def _cost(ask: Ask, max_tokens: int) -> int:
        prices = ask.prices
        raw = ask.prompt_tokens * prices.input + ask.n * max_tokens * prices.output
        return ceil(Fraction(raw, 10**6))

    def _refusal(self, ask: Ask, estimate: int) -> tuple[tuple[Any, ...] | None, int]:
        for scope in ask.scopes:
            if scope.limits.input_tokens_per_min is not None and ask.prompt_tokens > burst(scope.limits, 1):
                return ("input_tokens", scope.key_id, None, True), 0
        budgets = []
        for scope in ask.scopes:
            for window in ("day", "month"):
                if getattr(scope.limits, f"budget_{window}") is not None:
                    available = self._available(ask.tenant_id, scope, window)
                    pays = [
                        tokens for tokens in range(ask.max_tokens + 1) if self._cost(ask, tokens) <= available
                    ]
                    budgets.append((max(pays, default=-1), f"budget_{window}", scope.key_id))
        max_tokens = min([ask.max_tokens, *(pays for pays, *_ in budgets)])
        if max_tokens < min(16, ask.max_tokens):
            _, kind, key_id = next(budget for budget in budgets if budget[0] == max_tokens)
            return (kind, key_id, None, False), 0
        waits = []
        for scope in ask.scopes:
            wants = self._wants(ask, scope, max_tokens, estimate)
            for kind in range(3):
                rate = getattr(scope.limits, FIELDS[kind])
                if rate is not None:
                    level = self._level(ask.tenant_id, ask.model, scope, kind)
                    over = level + wants[kind] - burst(scope.limits, kind)
                    if over > 0:
                        waits.append((ceil(over * 60 * 10**6 / rate), KINDS[kind], scope.key_id))
            most = scope.limits.max_concurrency
            if most is not None and not ask.is_purse and self._leases(ask.tenant_id, scope.key_id) >= most:
                waits.append((10**6, "concurrency", scope.key_id))
        if waits:
            longest = max(wait for wait, *_ in waits)
            _, kind, key_id = next(wait for wait in waits if wait[0] == longest)
            return (kind, key_id, longest, False), 0
        return None, max_tokens

    async def settle(self, settlements: Sequence[Settlement]) -> list[Applied]:
        return [self._settle(one) for one in settlements]

    def _settle(self, settlement: Settlement) -> Applied:
        before = [
            event.settlement.outcome
            for event in self._of(Settled, settlement.tenant_id)
            if event.settlement.request_id == settlement.request_id
        ]
        applied: Applied = "duplicate"
        if not before:
            applied = "applied"
        elif settlement.outcome != "reaped" and set(before) == {"reaped"}:
            applied = "corrected"
        self._events.append(Settled(self._clock(), settlement, applied))
        return applied

    async def renew(self, running: Sequence[Progress]) -> None:
        for one in running:
            if any(taken.ask.request_id == one.request_id for taken in self._open(one.tenant_id)):
                self._events.append(Renewed(self._clock(), one))

    async def reap(self) -> list[Settlement]:
        tenants = {event.ask.tenant_id for event in self._events if type(event) is Taken}
        due = [one for t in tenants for one in self._open(t) if self._lease_ends(one) <= self._clock()]
        settlements = [self._reaped(one) for one in due]
        return [one for one in settlements if self._settle(one) == "applied"]

    def _reaped(self, taken: Taken) -> Settlement:
        ask, renewal = taken.ask, self._last_renewal(taken)
        prompt = cached = completion = 0
        if renewal is not None and renewal.progress.completion_tokens and not ask.is_purse:
            prompt, completion = ask.prompt_tokens, renewal.progress.completion_tokens
            cached = min(prompt, renewal.progress.cached_tokens)
        raw = (
            (prompt - cached) * ask.prices.input
            + cached * ask.prices.cached_input
            + completion * ask.prices.output
        )
        return Settlement(
            request_id=ask.request_id,
            tenant_id=ask.tenant_id,
            key_id=ask.key_id,
            model=ask.model,
            gateway_id=ask.gateway_id,
            started_at=ask.started_at,
            ended_at=self._clock() / 10**6,
            outcome="reaped",
            n=ask.n,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            cost=ceil(Fraction(raw, 10**6)),
        )

    async def standing(self, tenant_id: str, model: str, scopes: Sequence[Scope]) -> Standing:
        return Standing(tuple(gauge for scope in scopes for gauge in self._gauges(tenant_id, model, scope)))

    def _gauges(self, tenant_id: str, model: str, scope: Scope) -> Iterator[Gauge]:
        limits, key_id = scope.limits, scope.key_id
        for kind, name in enumerate(KINDS):
            if (rate := getattr(limits, FIELDS[kind])) is not None:
                level, most = self._level(tenant_id, model, scope, kind), burst(limits, kind)
                reset_s = ceil(level * 60 * 10**6 / rate) / 10**6
                yield Gauge(
                    kind=name,
                    key_id=key_id,
                    limit=most,
                    remaining=max(0, floor(most - level)),
                    reset_s=reset_s,
                )
        if limits.max_concurrency is not None:
            leases = self._leases(tenant_id, key_id)
            yield Gauge(
                kind="concurrency",
                key_id=key_id,
                limit=limits.max_concurrency,
                remaining=max(0, limits.max_concurrency - leases),
                reset_s=1.0 if leases else 0.0,
            )
        for window in ("day", "month"):
            if (budget := getattr(limits, f"budget_{window}")) is not None:
                where = (tenant_id, key_id, window)
                is_used = bool(self._used(*where) or self._reserved(*where))
                yield Gauge(
                    kind=f"budget_{window}",
                    key_id=key_id,
                    limit=max(0, budget + self._credit(*where)),
                    remaining=max(0, self._available(tenant_id, scope, window)),
                    reset_s=self._window_left_us(window) / 10**6 if is_used else 0.0,
                )

    def _window_left_us(self, window: str) -> int:
        now = instant(self._clock())
        begins = now.replace(hour=0, minute=0, second=0, microsecond=0)
        ends = begins + timedelta(days=1)
        if window == "month":
            ends = (begins.replace(day=1) + timedelta(days=32)).replace(day=1)
        return (ends - now) // timedelta(microseconds=1)

    async def reopen(self, held: Sequence[Held]) -> None:
        for one in held:
            ask = one.ask
            events = [*self._of(Settled, ask.tenant_id), *self._open(ask.tenant_id)]
            names = {getattr(event, "settlement", None) or event.ask for event in events}
            if ask.request_id not in {name.request_id for name in names}:
                without_rates = msgspec.structs.replace(ask, scopes=())
                paid_at = round(ask.started_at * 10**6)
                self._events.append(Taken(self._clock(), without_rates, ask.max_tokens, one.cost, 0, paid_at))

    async def spends(self, tenant_id: str, key_id: str | None) -> Spends:
        def spend(window: str) -> Spend:
            where = (tenant_id, key_id, window)
            forgiven = max(self._adjustments(*where, "reset"), default=0)
            return Spend(self._spent(*where), self._reserved(*where), self._credit(*where), forgiven)

        return Spends(self._clock(), spend("day"), spend("month"))

    async def adjust(self, adjustments: Sequence[Adjustment]) -> list[Applied]:
        return [self._adjust(one) for one in adjustments]

    def _adjust(self, adjustment: Adjustment) -> Applied:
        known = {event.adjustment.adjustment_id for event in self._of(Adjusted, adjustment.tenant_id)}
        if adjustment.adjustment_id in known:
            return "duplicate"
        self._events.append(Adjusted(self._clock(), adjustment))
        return "applied"

    async def usage(self, tenant_id: str, first_day: str, last_day: str) -> list[UsageRow]:
        rows: dict[tuple[str, str, str], list[Settlement]] = {}
        for one, _ in self._final(tenant_id):
            day = window_of(round(one.started_at * 10**6), "day")
            if first_day <= day <= last_day:
                rows.setdefault((day, one.model, one.key_id), []).append(one)
        return [
            UsageRow(
                day=day,
                tenant_id=tenant_id,
                model=model,
                key_id=key_id,
                requests=len(found),
                prompt_tokens=sum(one.prompt_tokens for one in found),
                cached_tokens=sum(one.cached_tokens for one in found),
                completion_tokens=sum(one.completion_tokens for one in found),
                cost=sum(one.cost for one in found),
            )
            for (day, model, key_id), found in sorted(rows.items())
        ]
