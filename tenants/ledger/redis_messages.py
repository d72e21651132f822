"""What the ledger's scripts are asked and what they answer, as msgpack.

Not JSON: `cjson` loses digits of integers above 10^14, `cmsgpack` keeps all of those below 2^53.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.decision import MIN_TOKENS
from tenants.ledger.ledger import KEEP_USAGE_DAYS, LEASE_S, PURSE_LEASE_S, TOMBSTONE_S
from tenants.ledger.meter import meters
from tenants.ledger.reservation import Held, reservation_of
from tenants.ledger.settlement import Progress, Settlement
from tenants.ledger.state import MAX_CREDIT, ScopeState, State
from tenants.ledger.usage import sums_of
from tenants.ledger.windows import day_name, day_of, to_us

MAX_ENDED = 100
"""Reservations of one tenant that are reaped in one go."""
Message = dict[str, Any]
_NO_METER = (None, None)
pack = msgspec.msgpack.encode


def text(value: object) -> str:
    """For what the scripts keep and never look into: `cmsgpack` knows no bytes, only strings."""
    return msgspec.json.encode(value).decode()


class Reserved(msgspec.Struct, frozen=True, array_like=True):
    """The state before, and what was granted; 0: refused."""

    max_tokens: int
    now_us: int
    estimate: int
    scopes: tuple[ScopeState, ...]

    @property
    def state(self) -> State:
        return State(self.now_us, self.estimate, self.scopes)


class Ended(msgspec.Struct, frozen=True, array_like=True):
    now_us: int
    next_end_us: int
    """When the next lease ends; 0: there is none."""
    reservations: tuple[tuple[bytes, int, int], ...]
    """The reservation in JSON, cached and completion tokens; -1 cached tokens: it was never renewed."""


def reserve(ask: Ask) -> Message:
    return {
        "id": ask.request_id,
        "key_id": ask.key_id,
        "model": ask.model,
        "scopes": list(map(_scope, ask.scopes)),
        "prompt_tokens": ask.prompt_tokens,
        "n": ask.n,
        "max_tokens": ask.max_tokens,
        "min_tokens": MIN_TOKENS,
        "input_price": ask.prices.input,
        "output_price": ask.prices.output,
        "is_purse": ask.is_purse,
        "lease_us": to_us(LEASE_S),
        "blob": text(reservation_of(ask)),
    }


def settle(settlement: Settlement, *, by_reaper: bool) -> Message:
    day = day_of(to_us(settlement.started_at))
    is_finished = settlement.outcome == "finished"
    return {
        "id": settlement.request_id,
        "key_id": settlement.key_id,
        "model": settlement.model,
        "row": text((settlement.model, settlement.key_id)),
        "hour": settlement.hour,
        "day": day,
        "usage_day": day_name(day),
        "is_reaped": settlement.outcome == "reaped",
        "is_reaper": by_reaper,
        "truth": settlement.took,
        "sums": sums_of(settlement),
        "answer_tokens": settlement.completion_tokens // settlement.n if is_finished else None,
        "tombstone_s": TOMBSTONE_S + 3600,
        "usage_s": KEEP_USAGE_DAYS * 86_400,
    }


def renew(running: Sequence[Progress]) -> Message:
    rows = [(one.request_id, one.cached_tokens, one.completion_tokens) for one in running]
    return {"running": rows, "lease_us": to_us(LEASE_S), "purse_us": to_us(PURSE_LEASE_S)}


def standing(model: str, scopes: Sequence[Scope]) -> Message:
    return {"model": model, "scopes": list(map(_scope, scopes))}


def reopen(held: Sequence[Held]) -> Message:
    return {"held": list(map(_held, held)), "lease_us": to_us(LEASE_S)}


def adjust(adjustment: Adjustment) -> Message:
    return {
        "id": adjustment.adjustment_id,
        "hour": adjustment.hour,
        "day": day_of(to_us(adjustment.at)),
        "who": adjustment.who,
        "window": adjustment.window,
        "credit": adjustment.credit,
        "forgiven": adjustment.forgiven,
        "max_credit": MAX_CREDIT,
        "tombstone_s": TOMBSTONE_S + 3600,
    }


def _held(held: Held) -> tuple[Any, ...]:
    ask = held.ask
    blob = text(reservation_of(ask))
    return ask.request_id, held.hour, blob, ask.key_id, held.day, held.cost, ask.is_purse


def _scope(scope: Scope) -> Message:
    limits = scope.limits
    return {
        "who": scope.who,
        "meters": [number for meter in meters(limits) for number in meter or _NO_METER],
        "budgets": (limits.budget_day, limits.budget_month),
        "max_concurrency": limits.max_concurrency,
    }
