"""Who holds how much beforehand: little, of a budget that is far from its end, for who asks here."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.ledger import money
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.decision import reserved_cost
from tenants.ledger.grant import Standing
from tenants.offline.customers import MAX_IDLE, Customers
from tenants.offline.local_share import local_share
from tenants.offline.purse import MAX_AMOUNT, Holder, Purse, amount_to_hold, given_back, holder_of, purse_ask
from tenants.terms import MAX_BUDGET, Limits, Prices
from tests.tenants.offline_rig import NOON, an_ask, left_of

A_DAY_S = 86_400
ACME = Holder("acme", None)


class TestLocalShare:
    def test_is_the_limit_divided_by_those_who_live(self) -> None:
        limits = Limits(
            requests_per_min=60, input_tokens_per_min=1000, output_tokens_per_min=7, max_concurrency=9
        )
        assert local_share(limits, 3) == Limits(
            requests_per_min=20, input_tokens_per_min=333, output_tokens_per_min=2, max_concurrency=3
        )

    def test_is_never_nothing(self) -> None:
        limits = Limits(requests_per_min=1, max_concurrency=2)
        assert local_share(limits, 3) == Limits(requests_per_min=1, max_concurrency=1)

    def test_of_no_limit_is_no_limit_and_money_is_left_out(self) -> None:
        assert local_share(Limits(budget_day=1, budget_month=2, burst_s=5), 3) == Limits(burst_s=5)

    @given(st.integers(1, 10**8), st.integers(1, 64))
    def test_shares_exceed_the_limit_only_where_each_is_one(self, limit: int, num_gateways: int) -> None:
        share = local_share(Limits(requests_per_min=limit), num_gateways).requests_per_min
        assert share is not None
        assert share * num_gateways <= limit or share == 1


class TestHolder:
    def test_of_a_request_without_a_budget_is_nobody(self) -> None:
        assert holder_of(an_ask("r", Limits(requests_per_min=5), Limits(max_concurrency=1))) is None

    def test_of_a_tenant_s_budget_is_the_tenant_whatever_key_asks(self) -> None:
        asks = (an_ask("r", Limits(budget_day=5), Limits()), an_ask("r", Limits(budget_month=5), key_id="b"))
        assert [holder_of(ask) for ask in asks] == [ACME, ACME]

    @pytest.mark.parametrize("of_tenant", [Limits(), Limits(budget_day=5)])
    def test_of_a_key_s_own_budget_is_the_key(self, of_tenant: Limits) -> None:
        assert holder_of(an_ask("r", of_tenant, Limits(budget_day=0))) == Holder("acme", "key_1")


class TestAmount:
    SCOPES = (Scope(None, Limits(budget_day=1000, budget_month=20_000)),)

    def test_is_a_hundredth_of_the_smallest_budget(self) -> None:
        assert amount_to_hold(self.SCOPES, left_of(budget_day=1000, budget_month=20_000), 0) == 10

    @pytest.mark.parametrize(
        ("left", "held", "wanted"), [(200, 0, 10), (199, 0, 0), (100, 10, 10), (99, 10, 0)]
    )
    def test_is_taken_from_20_times_as_much_and_kept_down_to_10_times(
        self, left: int, held: int, wanted: int
    ) -> None:
        for other in ({"budget_day": 1000, "budget_month": left}, {"budget_day": left, "budget_month": 1000}):
            assert amount_to_hold(self.SCOPES, left_of(**other), held) == wanted

    def test_is_nothing_of_a_budget_too_small_to_divide_or_of_none(self) -> None:
        tiny = (Scope(None, Limits(budget_day=99)),)
        assert amount_to_hold(tiny, left_of(budget_day=99), 0) == 0
        assert amount_to_hold((Scope(None, Limits()),), left_of(), 0) == 0

    def test_of_the_largest_budget_is_still_counted_exactly(self) -> None:
        scopes = (Scope(None, Limits(budget_month=MAX_BUDGET)),)
        amount = amount_to_hold(scopes, left_of(budget_month=MAX_BUDGET), 0)
        assert amount == MAX_AMOUNT
        assert amount * money.PER_TOKENS < 2**53


class TestPurse:
    def test_reserves_its_amount_and_nothing_else(self) -> None:
        limits = Limits(requests_per_min=1, max_concurrency=1, budget_day=5, budget_month=7)
        ask = purse_ask(an_ask("r", limits, limits), "purse_1", 123, NOON + 1)
        assert reserved_cost(ask, ask.max_tokens) == Purse(ACME, ask).amount == 123
        assert (ask.request_id, ask.started_at, ask.is_purse) == ("purse_1", NOON + 1, True)
        only_money = Limits(budget_day=5, budget_month=7)
        assert ask.scopes == (Scope(None, only_money), Scope("key_1", only_money))

    def test_pays_on_its_own_day_only(self) -> None:
        purse = Purse(ACME, purse_ask(an_ask(), "purse_1", 1, NOON))
        assert purse.pays_at(NOON + A_DAY_S / 2 - 1)
        assert not purse.pays_at(NOON + A_DAY_S / 2)

    def test_is_given_back_as_never_served(self) -> None:
        settlement = given_back(purse_ask(an_ask(), "purse_1", 1, NOON), NOON + 5)
        assert (settlement.request_id, settlement.started_at) == ("purse_1", NOON)
        assert (settlement.outcome, settlement.cost, settlement.prompt_tokens) == ("unserved", 0, 0)


def amounts_of(asks: list[Ask]) -> list[int]:
    return [Purse(ACME, ask).amount for ask in asks]


class Till:
    """Takes and gives back as its customers say, at once."""

    def __init__(self) -> None:
        ids = count(1)
        self.customers = Customers(lambda: f"purse_{next(ids)}")
        self.held: dict[Holder, Purse] = {}
        self.now = NOON

    def saw(self, limits: Limits, standing: Standing, **fields: Any) -> None:
        small = {"prompt_tokens": 1, "max_tokens": 1}
        self.customers.saw(an_ask("r", limits, **small | fields), standing)

    def tick(self) -> tuple[list[Holder], list[Ask]]:
        plan = self.customers.next_tick(self.held, self.now)
        for holder in plan.give_back:
            del self.held[holder]
        for ask in plan.take:
            holder = holder_of(ask)
            assert holder is not None
            assert holder not in self.held
            self.held[holder] = Purse(holder, ask)
        return plan


BUDGET = Limits(budget_day=1000)
PLENTY = left_of(budget_day=1000)


class TestCustomers:
    def test_who_asked_in_two_ticks_on_end_gets_a_purse(self) -> None:
        till = Till()
        for expected in ([], [10]):
            till.saw(BUDGET, PLENTY)
            _, take = till.tick()
            assert amounts_of(take) == expected

    def test_many_requests_in_one_tick_are_not_enough(self) -> None:
        till = Till()
        for _ in range(5):
            till.saw(BUDGET, PLENTY)
        assert till.tick() == ([], [])

    def test_requests_with_a_tick_between_are_not_enough(self) -> None:
        till = Till()
        for _ in range(5):
            till.saw(BUDGET, PLENTY)
            assert till.tick() == ([], [])
            assert till.tick() == ([], [])

    def test_who_asks_for_more_than_a_purse_would_hold_gets_none(self) -> None:
        """A small budget is spent to its end: nothing of it waits where it helps nobody."""
        till = Till()
        dear = Prices(input=10**6, output=10**6)
        for prompt_tokens, expected in ((9, []), (9, []), (3, [10])):
            till.saw(BUDGET, PLENTY, prices=dear, prompt_tokens=prompt_tokens, max_tokens=7)
            _, take = till.tick()
            assert amounts_of(take) == expected

    def test_who_has_no_budget_needs_none(self) -> None:
        till = Till()
        for _ in range(3):
            till.saw(Limits(requests_per_min=5), left_of(requests=5))
            assert till.tick() == ([], [])

    def test_one_who_holds_a_purse_gets_no_second(self) -> None:
        till = self.holding()
        till.saw(BUDGET, PLENTY)
        assert till.tick() == ([], [])

    def test_it_is_given_back_when_nobody_asked_for_long(self) -> None:
        till = self.holding()
        for _ in range(MAX_IDLE - 1):
            assert till.tick() == ([], [])
        assert till.tick() == ([ACME], [])

    def test_it_is_given_back_when_little_is_left(self) -> None:
        till = self.holding()
        till.saw(BUDGET, left_of(budget_day=99))
        assert till.tick() == ([ACME], [])
        till.saw(BUDGET, left_of(budget_day=199))
        assert till.tick() == ([], [])

    def test_another_budget_makes_another_purse(self) -> None:
        till = self.holding()
        till.saw(Limits(budget_day=500), PLENTY)
        give_back, take = till.tick()
        assert (give_back, amounts_of(take)) == ([ACME], [5])

    def test_another_day_makes_another_purse(self) -> None:
        till = self.holding()
        till.now += A_DAY_S
        till.saw(BUDGET, PLENTY)
        give_back, take = till.tick()
        assert (give_back, [ask.started_at for ask in take]) == ([ACME], [till.now])

    def test_a_purse_of_yesterday_goes_back_though_nobody_asks(self) -> None:
        till = self.holding()
        till.now += A_DAY_S
        assert till.tick() == ([ACME], [])

    @staticmethod
    def holding() -> Till:
        till = Till()
        for _ in range(2):
            till.saw(BUDGET, PLENTY)
            till.tick()
        assert list(till.held) == [ACME]
        return till

    @given(
        st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000)), max_size=4), max_size=45)
    )
    def test_a_purse_is_always_one_a_holder_small_and_of_who_asked_lately(
        self, ticks: list[list[tuple[str, int]]]
    ) -> None:
        till = Till()
        last: dict[str, tuple[int, int]] = {}
        for tick, requests in enumerate(ticks):
            for tenant_id, left in requests:
                till.saw(BUDGET, left_of(budget_day=left), tenant_id=tenant_id)
                last[tenant_id] = (tick, left)
            till.tick()
            for holder, purse in till.held.items():
                seen, left = last[holder.tenant_id]
                assert tick - seen < MAX_IDLE
                assert purse.amount == 10
                assert left >= 10 * purse.amount

    def test_its_ask_says_whose_it_is(self) -> None:
        limits = Limits(budget_day=1000)
        ask = msgspec.structs.replace(an_ask("r", limits, limits), key_id="key_1")
        assert holder_of(purse_ask(ask, "p", 1, NOON)) == holder_of(ask) == Holder("acme", "key_1")
