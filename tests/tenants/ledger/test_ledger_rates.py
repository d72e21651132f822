"""What a ledger lets through of rates and concurrency: one specification, run on memory and Redis."""

from __future__ import annotations

from tenants.ledger.ledger import Ledger
from tenants.terms import Limits, Prices
from tests.tenants.ledger.asking import CACHED_A_TENTH, gauges, granted, refused
from tests.tenants.ledger.builders import (
    NOON_US,
    Clock,
    an_ask,
    settled,
)


async def test_without_limits_everything_passes_and_nothing_is_told(ledger: Ledger) -> None:
    answer = await granted(ledger, prices=CACHED_A_TENTH)
    assert (answer.max_tokens, answer.reserved_cost, answer.standing.gauges) == (20, 30, ())


async def test_a_take_is_all_or_nothing(ledger: Ledger) -> None:
    limits = Limits(requests_per_min=5, input_tokens_per_min=100, max_concurrency=1, budget_day=1000)
    await granted(ledger, "r1", limits, prices=CACHED_A_TENTH)
    answer = await refused(ledger, "r2", limits, prices=CACHED_A_TENTH)
    assert answer.kind == "concurrency"
    assert gauges(answer) == {"requests": 4, "input_tokens": 90, "concurrency": 0, "budget_day": 970}


async def test_limits_of_a_key_hold_beside_its_tenant_s(ledger: Ledger) -> None:
    of_tenant, of_key = Limits(requests_per_min=3), Limits(requests_per_min=1)
    await granted(ledger, "r1", of_tenant, key_limits=of_key)
    answer = await refused(ledger, "r2", of_tenant, key_limits=of_key)
    assert (answer.kind, answer.key_id, answer.retry_after_s) == ("requests", "key_1", 60.0)
    await granted(ledger, "r3", of_tenant, key_limits=of_key, key_id="key_2")
    await granted(ledger, "r4", of_tenant, key_id="key_3")
    answer = await refused(ledger, "r5", of_tenant, key_id="key_3")
    assert (answer.kind, answer.key_id, answer.retry_after_s) == ("requests", None, 20.0)


async def test_rates_are_kept_apart_by_model_and_tenant(ledger: Ledger) -> None:
    limits = Limits(requests_per_min=1)
    await granted(ledger, "r1", limits)
    await refused(ledger, "r2", limits)
    await granted(ledger, "r3", limits, model="other")
    await granted(ledger, "r4", limits, tenant_id="beta")


async def test_a_rate_drains_and_resets_to_the_microsecond(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(requests_per_min=7, burst_s=60)
    for number in range(7):
        await granted(ledger, f"r{number}", limits)
    answer = await refused(ledger, "late", limits)
    assert answer.retry_after_s == 8.571429
    assert gauges(answer, "reset_s") == {"requests": 60.0}
    clock.now_us += 8_571_428
    assert (await refused(ledger, "late", limits)).retry_after_s == 0.000001
    clock.now_us += 1
    await granted(ledger, "late", limits)


async def test_a_prompt_above_the_burst_is_never_satisfiable(ledger: Ledger) -> None:
    limits = Limits(input_tokens_per_min=60, burst_s=10, budget_day=0)
    await granted(ledger, "r1", limits, prompt_tokens=10, prices=Prices())
    answer = await refused(ledger, "r2", limits, prompt_tokens=11, prices=CACHED_A_TENTH)
    assert (answer.kind, answer.is_never, answer.retry_after_s) == ("input_tokens", True, None)


async def test_an_estimate_of_output_never_makes_a_request_unsatisfiable(ledger: Ledger) -> None:
    limits = Limits(output_tokens_per_min=60, burst_s=60)
    answer = await granted(ledger, "r1", limits, max_tokens=4096, n=4)
    assert gauges(answer) == {"output_tokens": 0}
    assert (await refused(ledger, "r2", limits, max_tokens=30)).retry_after_s == 30.0


async def test_output_reserves_the_running_p90_and_settles_to_the_truth(ledger: Ledger) -> None:
    limits = Limits(output_tokens_per_min=6000)
    ask = an_ask("r1", limits, max_tokens=1000, n=2)
    assert gauges(await granted(ledger, "r1", limits, max_tokens=1000, n=2)) == {"output_tokens": 6000 - 512}
    await ledger.settle([settled(ask, completion_tokens=20)])
    standing = await ledger.standing("acme", "tiny", ask.scopes)
    assert standing.gauges[0].remaining == 6000 - 20
    answer = await granted(ledger, "r2", limits, max_tokens=1000)
    assert gauges(answer) == {"output_tokens": 6000 - 20 - 252}


async def test_an_answer_longer_than_estimated_leaves_a_debt(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(output_tokens_per_min=600)
    await granted(ledger, "r1", limits, max_tokens=2000)
    await ledger.settle([settled(an_ask("r1", limits, max_tokens=2000), completion_tokens=1200)])
    answer = await refused(ledger, "r2", limits, max_tokens=1)
    assert (answer.kind, answer.retry_after_s) == ("output_tokens", 60.1)
    assert gauges(answer) == {"output_tokens": 0}
    clock.advance(60.1)
    await granted(ledger, "r2", limits, max_tokens=1)


async def test_concurrency_counts_requests_until_they_are_settled(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(max_concurrency=2)
    await granted(ledger, "r1", limits)
    await granted(ledger, "r2", limits)
    answer = await refused(ledger, "r3", limits)
    assert (answer.kind, answer.retry_after_s, answer.is_never) == ("concurrency", 1.0, False)
    await ledger.settle([settled(an_ask("r1"))])
    await granted(ledger, "r3", limits)
    await refused(ledger, "r4", limits)
    clock.advance(10)
    await granted(ledger, "r4", limits)


async def test_a_rate_that_is_changed_keeps_what_was_taken(ledger: Ledger, clock: Clock) -> None:
    slow, fast = Limits(requests_per_min=4), Limits(requests_per_min=60)
    for number in range(4):
        await granted(ledger, f"r{number}", slow)
    assert (await refused(ledger, "late", slow)).retry_after_s == 15.0
    assert gauges(await granted(ledger, "r4", fast)) == {"requests": 55}
    answer = await refused(ledger, "late", slow)
    assert answer.retry_after_s == 30.0  # five are taken, and one more has to fit into four
    clock.advance(30)
    await granted(ledger, "late", slow)


async def test_a_level_is_touched_by_takes_of_its_own_only(ledger: Ledger, clock: Clock) -> None:
    """A minute drains at the rate that the next request finds, whatever was taken of others meanwhile."""
    slow, fast = Limits(requests_per_min=1, burst_s=180), Limits(requests_per_min=3)
    await granted(ledger, "r1", slow)
    await granted(ledger, "r2", slow)
    clock.advance(30)
    other = an_ask("r3", Limits(output_tokens_per_min=600))
    await ledger.reserve(other)
    await ledger.settle([settled(other)])
    clock.advance(10)
    assert gauges(await granted(ledger, "r4", fast), "reset_s") == {"requests": 20.0}  # 2 drained in 40 s


async def test_a_refusal_at_a_new_rate_tells_the_truth(ledger: Ledger, clock: Clock) -> None:
    slow, fast = Limits(requests_per_min=1), Limits(requests_per_min=60, burst_s=1)
    await granted(ledger, "r1", slow)
    assert (await refused(ledger, "r2", fast)).retry_after_s == 1.0
    clock.advance(1)
    await granted(ledger, "r2", fast)


async def test_a_clock_that_is_set_back_lets_nobody_wait_longer(ledger: Ledger, clock: Clock) -> None:
    limits = Limits(requests_per_min=1)
    await granted(ledger, "r1", limits)
    clock.now_us = NOON_US - 3600 * 10**6
    await ledger.settle([settled(an_ask("r1"))])
    assert (await refused(ledger, "r2", limits)).retry_after_s == 60.0
    clock.advance(60)
    await granted(ledger, "r2", limits)
