"""What one reserve takes, or why it is refused. `reserve.lua` takes by the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tenants.ledger.ask import Ask, Scope
from tenants.ledger.gauges import CONCURRENCY_RETRY_S, standing
from tenants.ledger.grant import Kind, Refused
from tenants.ledger.meter import changed, meters
from tenants.ledger.money import PER_TOKENS, cost
from tenants.ledger.state import RATES, ScopeState, State

MIN_TOKENS = 16
"""Of each answer; a budget that pays for less refuses, unless less was asked for."""
_US = 10**6

Tokens = tuple[int | None, int | None, int | None]
"""By rate; None where there is no limit."""


class Take(NamedTuple):
    max_tokens: int
    cost: int
    rates: tuple[Tokens, ...]
    """Of each scope."""


class _Limit(NamedTuple):
    """One limit, and how long it makes a request wait or how many tokens of each answer it pays for."""

    value: int
    kind: Kind
    key_id: str | None


def decide(ask: Ask, state: State) -> Take | Refused:
    """First what can never be, then money, then what is waited for longest."""
    for scope in ask.scopes:
        inputs = meters(scope.limits)[1]
        if inputs is not None and inputs.is_never(ask.prompt_tokens):
            return _refused(ask, state, _Limit(0, "input_tokens", scope.key_id), is_never=True)
    tightest = min(_budgets(ask, state), default=None, key=_value)
    max_tokens = ask.max_tokens if tightest is None else min(ask.max_tokens, tightest.value)
    if tightest is not None and max_tokens < min(MIN_TOKENS, ask.max_tokens):
        return _refused(ask, state, tightest)
    takes = tuple(_tokens(ask, scope, max_tokens, state.estimate) for scope in ask.scopes)
    longest = max(_waits(ask, state, takes), default=None, key=_value)
    if longest is not None:
        return _refused(ask, state, longest, retry_after_s=longest.value / _US)
    return Take(max_tokens, reserved_cost(ask, max_tokens), takes)


def reserved_cost(ask: Ask, max_tokens: int) -> int:
    """As if nothing were cached, and every answer as long as it may be."""
    return cost(ask.prices, prompt_tokens=ask.prompt_tokens, completion_tokens=ask.n * max_tokens)


def after(ask: Ask, state: State, take: Take) -> State:
    """How the limits stand once it is taken."""
    leases = 0 if ask.is_purse else 1
    return State(
        state.now_us,
        state.estimate,
        tuple(
            _after(found, leases, take.cost, tokens)
            for found, tokens in zip(state.scopes, take.rates, strict=True)
        ),
    )


def _after(found: ScopeState, leases: int, cost: int, tokens: Tokens) -> ScopeState:
    requests, inputs, outputs = (
        changed(level, count or 0) for level, count in zip(found.levels, tokens, strict=True)
    )
    return ScopeState(
        (requests, inputs, outputs),
        found.leases + leases,
        found.day.changed(reserved=cost),
        found.month.changed(reserved=cost),
    )


def _value(limit: _Limit) -> int:
    return limit.value


def _budgets(ask: Ask, state: State) -> Iterator[_Limit]:
    """How many tokens of each answer every budget pays for; -1: not even the prompt."""
    for scope, found in zip(ask.scopes, state.scopes, strict=True):
        if scope.limits.budget_day is not None:
            payable = _payable(ask, found.day.available(scope.limits.budget_day))
            yield _Limit(payable, "budget_day", scope.key_id)
        if scope.limits.budget_month is not None:
            payable = _payable(ask, found.month.available(scope.limits.budget_month))
            yield _Limit(payable, "budget_month", scope.key_id)


def _payable(ask: Ask, available: int) -> int:
    left = available * PER_TOKENS - ask.prompt_tokens * ask.prices.input
    if left < 0:
        return -1
    each = ask.n * ask.prices.output
    return min(ask.max_tokens, left // each) if each else ask.max_tokens


def _tokens(ask: Ask, scope: Scope, max_tokens: int, estimate: int) -> Tokens:
    """An estimate alone never asks for more than the burst."""
    requests, inputs, outputs = meters(scope.limits)
    expected = ask.n * min(max_tokens, estimate)
    return (
        None if requests is None else 1,
        None if inputs is None else ask.prompt_tokens,
        None if outputs is None else min(outputs.burst, expected),
    )


def _waits(ask: Ask, state: State, takes: tuple[Tokens, ...]) -> Iterator[_Limit]:
    for scope, found, take in zip(ask.scopes, state.scopes, takes, strict=True):
        for kind, meter, level, tokens in zip(RATES, meters(scope.limits), found.levels, take, strict=True):
            if meter is not None and tokens is not None and not meter.has_room(level, tokens):
                yield _Limit(meter.wait_us(level, tokens), kind, scope.key_id)
        most = scope.limits.max_concurrency
        if most is not None and found.leases >= most and not ask.is_purse:
            yield _Limit(CONCURRENCY_RETRY_S * _US, "concurrency", scope.key_id)


def _refused(
    ask: Ask, state: State, limit: _Limit, *, retry_after_s: float | None = None, is_never: bool = False
) -> Refused:
    return Refused(
        kind=limit.kind,
        key_id=limit.key_id,
        retry_after_s=retry_after_s,
        is_never=is_never,
        standing=standing(ask.scopes, state),
    )
