"""A gateway without the record: its share of limits, and never a micro-unit more than its purses held."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenants.ledger.ask import Ask
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.ledger import LEASE_S, PURSE_LEASE_S, RENEW_EVERY_S
from tenants.offline.purse import GOOD_FOR_S
from tenants.store import StoreUnavailable
from tenants.terms import Limits, Prices
from tests.tenants.offline_rig import FIRST_DAY, LAST_DAY, NOON, REFUSE, SERVE, Outage, a_settlement, an_ask

A_DAY_S = 86_400.0
MIDNIGHT = NOON + A_DAY_S / 2


@pytest.fixture
async def outage() -> Outage:
    return Outage()


class TestWho:
    async def test_a_tier_that_refuses_is_not_served(self, outage: Outage) -> None:
        with pytest.raises(StoreUnavailable):
            await outage.offline.reserve(an_ask(), REFUSE)

    async def test_a_tenant_without_a_budget_needs_no_money(self, outage: Outage) -> None:
        granted = await outage.offline.reserve(an_ask(), SERVE)
        assert isinstance(granted, Granted)
        assert (granted.max_tokens, granted.reserved_cost) == (20, 30)

    async def test_one_with_a_budget_and_no_purse_is_not_served(self, outage: Outage) -> None:
        with pytest.raises(StoreUnavailable):
            await outage.offline.reserve(an_ask("r", Limits(budget_month=10**9)), SERVE)

    async def test_what_costs_nothing_needs_no_purse(self, outage: Outage) -> None:
        ask = an_ask("r", Limits(budget_month=10**9), prices=Prices())
        assert isinstance(await outage.offline.reserve(ask, SERVE), Granted)


class TestShares:
    async def test_each_gateway_lets_its_share_in(self, outage: Outage) -> None:
        outage.num_gateways = 3
        answers = [await outage.ask(Limits(requests_per_min=9)) for _ in range(4)]
        assert [type(answer) for answer in answers] == [Granted, Granted, Granted, Refused]
        refused = answers[-1]
        assert isinstance(refused, Refused)
        assert (refused.kind, refused.retry_after_s) == ("requests", 20.0)

    async def test_who_waits_as_told_gets_in(self, outage: Outage) -> None:
        limits = Limits(requests_per_min=1)
        await outage.ask(limits)
        refused = await outage.ask(limits)
        assert isinstance(refused, Refused)
        assert refused.retry_after_s is not None
        outage.clock.advance(refused.retry_after_s)
        assert isinstance(await outage.ask(limits), Granted)

    async def test_more_than_a_share_holds_is_not_the_client_s_fault(self, outage: Outage) -> None:
        outage.num_gateways = 4
        limits = Limits(input_tokens_per_min=100)
        with pytest.raises(StoreUnavailable):
            await outage.ask(limits, prompt_tokens=26)
        never = await outage.ask(limits, prompt_tokens=101)
        assert isinstance(never, Refused)
        assert never.is_never

    async def test_concurrency_is_given_back_at_the_end(self, outage: Outage) -> None:
        limits = Limits(max_concurrency=2)
        outage.num_gateways = 2
        assert isinstance(await outage.ask(limits), Granted)
        running = outage.last_ask
        assert isinstance(await outage.ask(limits), Refused)
        outage.offline.ended(a_settlement(running))
        assert isinstance(await outage.ask(limits), Granted)

    async def test_concurrency_is_held_as_long_as_a_request_runs(self, outage: Outage) -> None:
        limits = Limits(max_concurrency=1)
        await outage.ask(limits)
        for _ in range(10):
            outage.clock.advance(RENEW_EVERY_S)
            await outage.offline.tick()
        assert isinstance(await outage.ask(limits), Refused)

    async def test_a_new_outage_begins_with_unused_shares(self, outage: Outage) -> None:
        limits = Limits(requests_per_min=1)
        await outage.ask(limits)
        await outage.back()
        assert isinstance(await outage.ask(limits), Granted)

    async def test_a_key_s_own_limits_are_shared_too(self, outage: Outage) -> None:
        limits = (Limits(), Limits(requests_per_min=1))
        assert isinstance(await outage.ask(*limits), Granted)
        assert isinstance(await outage.ask(*limits), Refused)


class TestMoney:
    BUDGET = Limits(budget_day=10_000)

    async def test_is_what_the_purse_holds(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        assert outage.prepaid.amount_held == 100
        answers = [await outage.ask(self.BUDGET) for _ in range(3)]
        assert [answer.reserved_cost for answer in answers if isinstance(answer, Granted)] == [30, 30, 30]
        with pytest.raises(StoreUnavailable):
            await outage.ask(self.BUDGET)

    async def test_lowers_max_tokens_to_what_is_left(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        granted = await outage.ask(self.BUDGET, max_tokens=500)
        assert isinstance(granted, Granted)
        assert (granted.max_tokens, granted.reserved_cost) == (90, 100)

    async def test_that_was_reserved_and_not_spent_is_there_again(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.ask(self.BUDGET, max_tokens=90)
        outage.offline.ended(a_settlement(outage.last_ask, completion_tokens=50))
        granted = await outage.ask(self.BUDGET, max_tokens=90)
        assert isinstance(granted, Granted)
        assert granted.reserved_cost == 40

    async def test_a_refusal_for_money_takes_nothing_of_the_share(self, outage: Outage) -> None:
        limits = msgspec.structs.replace(self.BUDGET, requests_per_min=1)
        with pytest.raises(StoreUnavailable):
            await outage.ask(limits)
        await outage.earn_purses(limits)
        assert isinstance(await outage.ask(limits), Granted)

    async def test_what_the_client_is_told_of_does_not_name_the_purse(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        granted = await outage.ask(msgspec.structs.replace(self.BUDGET, requests_per_min=60))
        assert isinstance(granted, Granted)
        assert [gauge.kind for gauge in granted.standing.gauges] == ["requests"]

    async def test_of_a_purse_is_spent_on_its_own_day_only(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        with pytest.raises(StoreUnavailable):
            await outage.ask(self.BUDGET, started_at=outage.clock.now + A_DAY_S)

    async def test_of_a_purse_is_not_spent_when_it_was_not_renewed_for_long(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        outage.clock.advance(GOOD_FOR_S - 1)
        assert isinstance(await outage.ask(self.BUDGET), Granted)
        outage.clock.advance(1)
        with pytest.raises(StoreUnavailable):
            await outage.ask(self.BUDGET)

    def test_of_a_purse_is_held_for_longer_than_it_is_spent(self) -> None:
        longest_request_s = 600
        assert GOOD_FOR_S + longest_request_s <= PURSE_LEASE_S

    async def test_of_a_key_with_a_budget_is_its_own(self, outage: Outage) -> None:
        of_key = (self.BUDGET, Limits(budget_day=5_000))
        await outage.earn_purses(*of_key)
        assert outage.prepaid.amount_held == 50
        with pytest.raises(StoreUnavailable):
            await outage.ask(self.BUDGET)
        assert isinstance(await outage.ask(*of_key), Granted)


class TestTheRecordComesBack:
    BUDGET = Limits(budget_day=10_000)

    async def test_a_purse_nobody_used_is_given_back_at_once(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.back()
        await outage.tick()
        assert await outage.available(self.BUDGET) == 10_000

    async def test_a_used_one_once_the_last_request_was_settled_and_a_tick_later(
        self, outage: Outage
    ) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.ask(self.BUDGET)
        await outage.back()
        for _ in range(3):
            await outage.tick()
            assert await outage.available(self.BUDGET) == 9_900
        await outage.end(completion_tokens=5)
        await outage.tick()
        assert await outage.available(self.BUDGET) == 9_885
        await outage.tick()
        assert await outage.available(self.BUDGET) == 9_985

    async def test_the_settlement_of_the_purse_is_behind_that_of_its_requests(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.ask(self.BUDGET)
        asked = outage.last_ask.request_id
        await outage.back()
        await outage.end()
        for _ in range(2):
            await outage.tick()
        assert [one.outcome for one in outage.spool] == ["finished", "unserved"]
        assert outage.spool[0].request_id == asked

    async def test_a_purse_that_waits_keeps_its_lease(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.ask(self.BUDGET)
        await outage.back()
        for _ in range(round(2 * PURSE_LEASE_S / RENEW_EVERY_S)):
            await outage.tick()
        assert await outage.record.reap() == []

    async def test_the_money_of_a_dead_gateway_comes_back_with_its_lease(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        outage.clock.advance(PURSE_LEASE_S - 1)
        assert await outage.record.reap() == []
        outage.clock.advance(1)
        (reaped,) = await outage.record.reap()
        assert (reaped.outcome, reaped.cost, reaped.prompt_tokens) == ("reaped", 0, 0)
        assert await outage.available(self.BUDGET) == 10_000
        assert await outage.record.usage("acme", FIRST_DAY, LAST_DAY) == []

    async def test_a_purse_whose_grant_was_not_heard_comes_back_soon(self, outage: Outage) -> None:
        outage.record.is_deaf = True
        await outage.earn_purses(self.BUDGET)
        outage.record.is_deaf = False
        assert outage.prepaid.amount_held == 0
        assert await outage.available(self.BUDGET) == 9_900
        outage.clock.advance(LEASE_S)
        await outage.record.reap()
        assert await outage.available(self.BUDGET) == 10_000

    async def test_a_purse_is_no_request_among_those_at_once(self, outage: Outage) -> None:
        limits = msgspec.structs.replace(self.BUDGET, max_concurrency=1)
        await outage.earn_purses(limits)
        assert outage.prepaid.amount_held == 100
        assert isinstance(await outage.record.reserve(an_ask("next", limits)), Granted)

    async def test_all_is_given_back_at_an_orderly_end(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.prepaid.close()
        assert await outage.available(self.BUDGET) == 10_000

    async def test_a_full_disk_keeps_no_purse_from_its_end(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.earn_purses(self.BUDGET, Limits(budget_day=5_000))
        assert await outage.available(self.BUDGET) == 9_850
        outage.disk_fault = OSError(28, "no space left")
        await outage.prepaid.close()
        assert await outage.available(self.BUDGET) == 10_000
        assert outage.prepaid.amount_held == 0

    async def test_one_that_was_stopped_in_giving_back_does_the_rest_later(self, outage: Outage) -> None:
        await outage.earn_purses(self.BUDGET)
        await outage.earn_purses(self.BUDGET, Limits(budget_day=5_000))
        outage.disk_fault = asyncio.CancelledError()
        with pytest.raises(asyncio.CancelledError):
            await outage.prepaid.close()
        outage.disk_fault = None
        await outage.prepaid.close()
        assert await outage.available(self.BUDGET) == 10_000


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["online", "tick", "tick", "away", "ask", "ask", "back", "end"]), st.integers(1, 40)
    ),
    min_size=15,
    max_size=40,
)


@given(STEPS)
@example([("away", 1), ("tick", 1), ("ask", 20)])  # asked on the day after the purse was taken
async def test_no_history_ever_overspends(steps: list[tuple[str, int]]) -> None:
    """Others take all that the record grants, while this gateway is cut off from it and comes back, and a
    day ends. At last they take every micro-unit that is left, and only then the last requests end.
    """
    outage, limits = Outage(MIDNIGHT - 5), Limits(budget_day=3_000)
    running: list[Ask] = []
    await outage.earn_purses(limits)
    for step, number in steps:
        if step == "away":
            outage.is_away = True
        elif step == "back" and outage.is_away:
            await outage.back()
        elif step == "ask" and outage.is_away:
            with suppress(StoreUnavailable):
                answer = await outage.ask(limits, max_tokens=number, prompt_tokens=1)
                assert isinstance(answer, Granted)
                running.append(msgspec.structs.replace(outage.last_ask, max_tokens=answer.max_tokens))
        elif step == "end" and running:
            ask = running.pop(number % len(running))
            await outage.end(ask, completion_tokens=ask.max_tokens)
        elif step == "online":
            await outage.others_take(limits, number)
        elif step == "tick":
            if not outage.is_away:
                await outage.answered(limits)
            await outage.tick()
    await outage.back()
    for _ in range(3):
        await outage.tick()
    await outage.others_take_all(limits)
    for ask in running:
        await outage.end(ask, completion_tokens=ask.max_tokens)
    assert await outage.most_spent_on_a_day() <= 3_000
