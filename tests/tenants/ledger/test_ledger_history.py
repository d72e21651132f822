"""Whatever is done in whatever order: memory = Redis = a slow model that counts everything anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.ledger import Ledger
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.redis_ledger import RedisLedger
from tenants.ledger.reservation import Held
from tenants.terms import Limits, Prices
from tests.tenants.ledger.builders import PATIENCE_S, Clock, a_reset, a_top_up, an_ask, progress, settled
from tests.tenants.ledger.model import ModelLedger

LIMITS = (
    Limits(),
    Limits(requests_per_min=3, max_concurrency=2),
    Limits(requests_per_min=7, input_tokens_per_min=61, burst_s=30, budget_day=100),
    Limits(output_tokens_per_min=600, budget_month=150),
    Limits(output_tokens_per_min=90, burst_s=7, max_concurrency=1),
    Limits(requests_per_min=10**8, burst_s=3600, budget_day=47, budget_month=300),
    Limits(requests_per_min=1, burst_s=1, input_tokens_per_min=10**8, output_tokens_per_min=1),
)
PRICES = (Prices(), Prices(input=10**6, cached_input=10**5, output=10**6), Prices(input=333, output=333_333))
SECONDS = (0.000001, 0.37, 1.0, 5.0, 10.0, 20.000003, 61.0, 3700.0, 43_199.999999, 100_000.0)
FORGOTTEN_US = 47 * 3600 * 10**6
"""After so long nobody says whether a settlement is still known."""

small = st.integers(0, 40)
RESERVE = st.tuples(
    st.just("reserve"),
    st.fixed_dictionaries(
        {
            "tenant_id": st.sampled_from(["acme", "acme", "beta"]),
            "key_id": st.sampled_from(["key_1", "key_2"]),
            "model": st.sampled_from(["tiny", "tiny", "a:b"]),
            "limits": st.sampled_from(LIMITS),
            "key_limits": st.none() | st.sampled_from(LIMITS),
            "prices": st.sampled_from(PRICES),
            "prompt_tokens": small,
            "n": st.integers(1, 3),
            "max_tokens": st.integers(1, 40) | st.just(500),
            "is_purse": st.integers(0, 9).map(lambda drawn: drawn == 0),
        }
    ),
)
SETTLE = st.tuples(
    st.just("settle"),
    st.lists(
        st.tuples(
            small,
            st.sampled_from(["finished", "finished", "left", "failed", "unserved", "reaped"]),
            small,
            st.integers(0, 1500),
        ),
        max_size=3,
    ),
)
RENEW = st.tuples(st.just("renew"), st.lists(st.tuples(small, small, small), max_size=3))
REAP = st.tuples(st.just("reap"), st.none())
ADJUST = st.tuples(
    st.just("adjust"),
    st.fixed_dictionaries(
        {
            "tenant_id": st.just("acme"),
            "key_id": st.sampled_from([None, "key_1"]),
            "window": st.sampled_from(["day", "month"]),
            "amount": st.none() | st.integers(-60, 60),
            "number": st.integers(0, 9),
            "age_s": st.sampled_from([0, 0, 0, 43_200]),
        }
    ),
)
REOPEN = st.tuples(st.just("reopen"), st.lists(st.tuples(small, small), max_size=3))
ADVANCE = st.tuples(st.just("advance"), st.sampled_from(SECONDS))
OPERATIONS = st.one_of(RESERVE, RESERVE, SETTLE, RENEW, REAP, ADJUST, REOPEN, ADVANCE)
HISTORIES = st.lists(OPERATIONS, max_size=25)


class History:
    """Plays operations on several ledgers that share a clock, and says what each answered."""

    def __init__(self, clock: Clock, ledgers: Sequence[Ledger]) -> None:
        self._clock = clock
        self._ledgers = ledgers
        self._asks: list[Ask] = []
        self._adjustments: dict[int, Adjustment] = {}
        self._settled_at: dict[str, int] = {}

    async def play(self, name: str, argument: Any) -> list[Any]:
        return await getattr(self, f"_{name}")(argument)

    async def _reserve(self, fields: dict[str, Any]) -> list[Any]:
        fields = dict(fields)
        if fields["is_purse"]:
            fields |= {"limits": Limits(budget_day=100), "key_limits": None}
        request_id = f"r{len(self._asks)}"
        ask = an_ask(request_id, fields.pop("limits"), started_at=self._clock.now_us / 10**6, **fields)
        self._asks.append(ask)
        return [await ledger.reserve(ask) for ledger in self._ledgers]

    async def _settle(self, drawn: list[tuple[int, str, int, int]]) -> list[Any]:
        settlements = []
        for at, outcome, cached, completion in drawn:
            ask = self._ask(at)
            if ask is None or self._is_forgotten(ask) or (ask.is_purse and outcome != "unserved"):
                continue
            tokens = {"cached_tokens": min(cached, ask.prompt_tokens), "completion_tokens": completion}
            if outcome == "unserved":
                tokens = {}
            self._settled_at.setdefault(ask.request_id, self._clock.now_us)
            settlements.append(settled(ask, outcome, **tokens))
        return [await ledger.settle(settlements) for ledger in self._ledgers]

    async def _renew(self, drawn: list[tuple[int, int, int]]) -> list[Any]:
        running = [progress(ask, *tokens) for at, *tokens in drawn if (ask := self._ask(at)) is not None]
        return [await ledger.renew(running) for ledger in self._ledgers]

    async def _reap(self, _: None) -> list[Any]:
        answers = [sorted(await ledger.reap(), key=lambda one: one.request_id) for ledger in self._ledgers]
        self._settled_at |= {one.request_id: self._clock.now_us for one in answers[0]}
        return answers

    async def _adjust(self, fields: dict[str, Any]) -> list[Any]:
        """A reset as a gateway makes it, of what it reads; now and then one comes again, or late."""
        fields = dict(fields)
        amount, number, at = fields.pop("amount"), fields.pop("number"), self._clock.now_us / 10**6
        adjustment = self._adjustments.get(number)
        if adjustment is None:
            fields |= {"adjustment_id": f"a{number}", "at": at - fields.pop("age_s")}
            if amount is None:
                spends = await self._ledgers[0].spends(fields["tenant_id"], fields["key_id"])
                adjustment = a_reset(getattr(spends, fields["window"]).spent, **fields)
            else:
                adjustment = a_top_up(amount, **fields)
            self._adjustments[number] = adjustment
        if at - adjustment.at > FORGOTTEN_US / 10**6:
            return [None]
        return [await ledger.adjust([adjustment]) for ledger in self._ledgers]

    async def _reopen(self, drawn: list[tuple[int, int]]) -> list[Any]:
        asks = [(self._ask(at), cost) for at, cost in drawn]
        held = [Held(ask, cost) for ask, cost in asks if ask is not None and not self._is_forgotten(ask)]
        return [await ledger.reopen(held) for ledger in self._ledgers]

    async def _advance(self, seconds: float) -> list[Any]:
        self._clock.advance(seconds)
        return [None]

    async def books(self) -> list[Any]:
        """How everybody stands, and all usage."""
        return [[await view async for view in self._views(ledger)] for ledger in self._ledgers]

    async def _views(self, ledger: Ledger) -> Any:
        for limits in LIMITS:
            scopes = (Scope(None, limits), Scope("key_1", limits), Scope("key_2", limits))
            yield ledger.standing("acme", "tiny", scopes)
        yield ledger.standing("acme", "a:b", scopes)
        yield ledger.standing("beta", "tiny", scopes)
        for tenant_id in ("acme", "beta"):
            yield ledger.spends(tenant_id, None)
            yield ledger.spends(tenant_id, "key_1")
            yield ledger.usage(tenant_id, "2025-11-01", "2026-03-31")

    def _ask(self, at: int) -> Ask | None:
        return self._asks[at % len(self._asks)] if self._asks else None

    def _is_forgotten(self, ask: Ask) -> bool:
        settled_at = self._settled_at.get(ask.request_id, self._clock.now_us)
        return self._clock.now_us - settled_at > FORGOTTEN_US


async def play(history: list[tuple[str, Any]], redis: Redis) -> None:
    await redis.flushall()
    clock = Clock()
    ledgers = [ModelLedger(clock), MemoryLedger(clock), RedisLedger(redis, clock, PATIENCE_S)]
    player = History(clock, ledgers)
    for name, argument in history:
        expected, *answers = await player.play(name, argument)
        for answer in answers:
            assert answer == expected, name
    expected, *answers = await player.books()
    in_use = [without_empty(views) for views in (expected, *answers)]
    assert in_use[1] == in_use[0]
    assert in_use[2] == in_use[0]
    for key in await redis.keys("*"):
        assert await redis.ttl(key) > 0, key


def without_empty(views: list[Any]) -> list[Any]:
    """A row that was corrected to nothing may be there or not."""
    return [
        [row for row in view if row.requests or row.cost] if isinstance(view, list) else view
        for view in views
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(HISTORIES)
async def test_memory_redis_and_the_model_agree_whatever_is_done(
    redis: Redis, history: list[tuple[str, Any]]
) -> None:
    await play(history, redis)


@pytest.mark.soak
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=1000)
@given(st.lists(OPERATIONS, max_size=60))
async def test_they_agree_through_long_histories_too(redis: Redis, history: list[tuple[str, Any]]) -> None:
    await play(history, redis)
