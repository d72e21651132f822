"""What a limit promises over time, whoever asks how: never more, never less, and honest about the wait."""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from tenants.ledger.grant import Granted, Refused
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.redis_ledger import RedisLedger
from tenants.terms import Limits
from tests.tenants.ledger.builders import PATIENCE_S, Clock, an_ask, settled

RATES = st.integers(1, 100_000)
BURSTS = st.integers(1, 120)


@given(
    RATES,
    BURSTS,
    st.lists(st.tuples(st.integers(0, 2 * 10**7), st.integers(0, 500), st.integers(0, 500)), max_size=60),
)
async def test_never_more_than_rate_times_time_plus_burst(
    per_min: int, burst_s: int, asks: list[tuple[int, int, int]]
) -> None:
    """Of what was really used: each request gives back what turns out to be cached."""
    clock, limits = Clock(), Limits(input_tokens_per_min=per_min, burst_s=burst_s)
    ledger, burst = MemoryLedger(clock), max(1, per_min * burst_s // 60)
    admitted: list[tuple[int, int]] = []
    for number, (gap_us, prompt, cached) in enumerate(asks):
        clock.now_us += gap_us
        ask = an_ask(f"r{number}", limits, prompt_tokens=prompt)
        if isinstance(await ledger.reserve(ask), Granted):
            cached = min(cached, prompt)
            await ledger.settle([settled(ask, cached_tokens=cached)])
            admitted.append((clock.now_us, prompt - cached))
    for first, (began, _) in enumerate(admitted):
        used = 0
        for now, tokens in admitted[first:]:
            used += tokens
            assert used * 60 * 10**6 <= per_min * (now - began) + burst * 60 * 10**6


@given(RATES, BURSTS, st.lists(st.integers(1, 2000), max_size=60))
async def test_who_stays_under_the_rate_is_never_refused(
    per_min: int, burst_s: int, prompts: list[int]
) -> None:
    clock, limits = Clock(), Limits(input_tokens_per_min=per_min, burst_s=burst_s)
    ledger, burst = MemoryLedger(clock), max(1, per_min * burst_s // 60)
    for number, prompt in enumerate(prompts):
        prompt = min(prompt, burst)
        assert isinstance(await ledger.reserve(an_ask(f"r{number}", limits, prompt_tokens=prompt)), Granted)
        clock.now_us += -(-prompt * 60 * 10**6 // per_min)


@given(
    st.builds(
        Limits,
        requests_per_min=st.none() | st.integers(1, 100),
        input_tokens_per_min=st.none() | st.integers(1000, 5000),
        output_tokens_per_min=st.none() | st.integers(1, 500),
        burst_s=st.integers(10, 90),
    ),
    st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(0, 100), st.integers(1, 300), st.integers(0, 900)),
        max_size=40,
    ),
)
async def test_who_waits_as_told_gets_in_and_not_a_microsecond_earlier(
    limits: Limits, asks: list[tuple[int, int, int, int]]
) -> None:
    clock = Clock()
    ledger = MemoryLedger(clock)
    for number, (gap_us, prompt, max_tokens, completion) in enumerate(asks):
        clock.now_us += gap_us
        ask = an_ask(f"r{number}", limits, prompt_tokens=prompt, max_tokens=max_tokens)
        answer = await ledger.reserve(ask)
        if isinstance(answer, Refused):
            assert answer.retry_after_s is not None
            wait_us = round(answer.retry_after_s * 10**6)
            clock.now_us += wait_us - 1
            assert isinstance(await ledger.reserve(ask), Refused)
            clock.now_us += 1
            assert isinstance(await ledger.reserve(ask), Granted)
        await ledger.settle([settled(ask, completion_tokens=completion)])


@pytest.mark.soak
async def test_two_gateways_and_a_hundred_tenants_at_ten_times_their_rate(redis: Redis) -> None:
    """A minute of a clock that both share. Half of the tenants ask on whatever they hear; the others wait as
    they are told, and are then let in at once.
    """
    clock, rng, minute_us = Clock(), Random(0), 60 * 10**6
    gateways = [RedisLedger(redis, clock, PATIENCE_S), RedisLedger(redis, clock, PATIENCE_S)]
    limits = {f"t{at}": Limits(requests_per_min=rng.randint(6, 60), burst_s=10) for at in range(100)}
    due = [(rng.randrange(10**6), tenant_id, False) for tenant_id in limits]
    heapify(due)
    began, admitted, waited = clock.now_us, defaultdict(int), 0
    for number in count():
        at_us, tenant_id, has_waited = heappop(due)
        if at_us >= minute_us:
            break
        clock.now_us, its = began + at_us, limits[tenant_id]
        answer = await gateways[number % 2].reserve(an_ask(f"r{number}", its, tenant_id=tenant_id))
        next_us = at_us + minute_us // its.requests_per_min // 10
        if isinstance(answer, Granted):
            admitted[tenant_id] += 1
            waited += has_waited
        else:
            assert not has_waited
            assert answer.retry_after_s is not None
            if is_polite := int(tenant_id[1:]) % 2 == 0:
                next_us = at_us + round(answer.retry_after_s * 10**6)
        heappush(due, (next_us, tenant_id, isinstance(answer, Refused) and is_polite))
    assert waited > 1000
    for tenant_id, its in limits.items():
        most = its.requests_per_min + max(1, its.requests_per_min // 6)
        least = (
            most - 2 if int(tenant_id[1:]) % 2 == 0 else most * 0.88 - 2
        )  # the others' times are their own
        assert least <= admitted[tenant_id] <= most
    assert not [key for key in await redis.keys("*") if await redis.ttl(key) <= 0]
