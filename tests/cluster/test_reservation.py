"""A reservation is settled once, at what its request used, whatever ends it."""

from __future__ import annotations

import pytest

from cluster.generation import Usage
from cluster.reservation import Reservation
from tenants.ledger.grant import Granted
from tenants.ledger.settlement import Outcome, Progress
from tenants.terms import Prices
from tests.cluster.fake_books import NOW, FakeBooks, an_ask

PRICES = Prices(input=1_000_000, cached_input=100_000, output=3_000_000)
USAGE = Usage(prompt_tokens=20, completion_tokens=7, cached_tokens=16)


def reserved(books: FakeBooks) -> Reservation:
    return books.open(an_ask(prices=PRICES, n=2), Granted(max_tokens=8, reserved_cost=50))


def test_a_settlement_says_what_was_used_and_what_it_costs() -> None:
    books = FakeBooks()
    reservation = reserved(books)
    books.now = NOW + 5
    reservation.settle("finished", USAGE)
    (settlement,) = books.settlements
    assert (settlement.request_id, settlement.tenant_id, settlement.gateway_id) == ("r", "acme", "g")
    assert (settlement.started_at, settlement.ended_at, settlement.n) == (NOW, NOW + 5, 2)
    assert (settlement.prompt_tokens, settlement.cached_tokens, settlement.completion_tokens) == (20, 16, 7)
    assert settlement.cost == 4 + 2 + 21  # 1.6 for the cached ones, rounded up once in the sum


@pytest.mark.parametrize(("outcome", "cost"), [("left", 27), ("failed", 0)])
def test_who_leaves_pays_and_who_was_failed_does_not(outcome: Outcome, cost: int) -> None:
    books = FakeBooks()
    reserved(books).settle(outcome, USAGE)
    (settlement,) = books.settlements
    assert (settlement.outcome, settlement.cost, settlement.completion_tokens) == (outcome, cost, 7)


def test_what_never_ran_used_nothing() -> None:
    books = FakeBooks()
    reserved(books).settle("unserved")
    (settlement,) = books.settlements
    assert (settlement.prompt_tokens, settlement.completion_tokens, settlement.cost) == (0, 0, 0)


def test_the_first_end_counts() -> None:
    books = FakeBooks()
    reservation = reserved(books)
    reservation.settle("left", USAGE)
    reservation.settle("finished", USAGE)
    assert books.outcomes == ["left"]


def test_progress_is_nothing_until_it_runs_and_then_what_its_usage_says() -> None:
    reservation = reserved(FakeBooks())
    assert reservation.progress() == Progress("acme", "r", 0, 0)
    reservation.runs(lambda: USAGE)
    assert reservation.progress() == Progress("acme", "r", 16, 7)
