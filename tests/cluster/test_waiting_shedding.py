"""The parts of shedding: when to come back, who was promised what, deadlines, shorter answers."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.waiting.brownout import Brownout
from cluster.waiting.config import WaitingConfig
from cluster.waiting.deadline_watch import DeadlineWatch
from cluster.waiting.interactive_line import InteractiveLine
from cluster.waiting.promises import (
    EARLY_S,
    GRACE_S,
    MAX_PROMISES,
    NOBODY,
    RETURN_FADES,
    Expected,
    Promises,
)
from cluster.waiting.shedding import (
    JITTER,
    MAX_RETRY_AFTER_S,
    Fullness,
    retry_after_s,
    until_shorter_s,
)
from cluster.waiting.wait_estimate import Wait
from tenants.queued import Work
from tests.cluster.waiting_rig import BATCH, FREE, PAID, an_arrival


class TestRetryAfter:
    def test_is_when_a_third_of_the_allowed_wait_is_left(self) -> None:
        """40 s are ahead, and 9 s is what the client may wait: in 37 s it has 3 s before it."""
        assert until_shorter_s(Wait(40.0, 40.0, 40.0), 9.0) == 37.0

    def test_where_a_cap_turned_it_away_is_when_two_thirds_of_the_line_have_left(self) -> None:
        assert until_shorter_s(Wait(9.0, 9.0, 9.0), 600.0) == pytest.approx(6.0)

    def test_begins_with_the_arrival_of_the_first_replica(self) -> None:
        assert until_shorter_s(Wait(9.0, 9.0, 39.0), 9.0) == pytest.approx(36.0)

    def test_is_told_in_whole_seconds_and_a_tenth_later_at_most(self) -> None:
        told = {retry_after_s(40.0, Random(seed)) for seed in range(500)}
        assert (min(told), max(told)) == (41, math.ceil(40 * (1 + JITTER)))

    @given(st.floats(-1e6, 1e6), st.integers())
    def test_is_between_one_second_and_two_minutes(self, until_s: float, seed: int) -> None:
        told = retry_after_s(until_s, Random(seed))
        assert isinstance(told, int)
        assert max(1, min(until_s, MAX_RETRY_AFTER_S)) <= told <= MAX_RETRY_AFTER_S


class TestFullness:
    def test_of_a_tenants_own_line_is_its_own_matter_all_else_is_not(self) -> None:
        assert Fullness(of_time=2.0, of_tenant=1.1, of_all=2.0).code == (429, "queue_full")
        assert Fullness(of_time=1.1, of_tenant=1.0, of_all=0.5).code == (503, "overloaded")

    def test_is_over_by_what_is_fullest(self) -> None:
        assert Fullness(0.25, 0.1, 0.26).most == 0.26
        assert not Fullness(1.0, 1.0, 1.0).is_over
        assert Fullness(0.1, 0.1, 1.01).is_over


class TestPromises:
    def test_is_due_from_shortly_before_its_time_until_it_lapses(self) -> None:
        promises = Promises()
        promises.make(an_arrival("r"), place_s=28.0, due_s=30.0)
        promise = promises.of(an_arrival("r"))
        assert promise is not None
        assert [promise.is_due(30 - EARLY_S - 0.1), promise.is_due(30 - EARLY_S)] == [False, True]
        promises.forget_lapsed(30 + GRACE_S - 0.1)
        assert len(promises) == 1
        promises.forget_lapsed(30 + GRACE_S)
        assert (len(promises), promises.expected(PAID)) == (0, NOBODY)

    def test_is_known_by_tenant_and_claim(self) -> None:
        promises = Promises()
        promises.make(an_arrival("r", PAID), place_s=28.0, due_s=30.0)
        assert promises.of(an_arrival("again", PAID, claim=b"r")) is not None
        assert promises.of(an_arrival("r", FREE)) is None
        assert promises.of(an_arrival("other", PAID)) is None

    def test_stands_in_line_until_it_is_closed(self) -> None:
        promises = Promises()
        promises.make(an_arrival("r", tokens=700, num_siblings=3), place_s=28.0, due_s=30.0)
        assert promises.expected(PAID) == Expected(Work(700, 3), 1)
        promise = promises.of(an_arrival("r"))
        assert promise is not None
        promises.close(promise)
        assert (len(promises), promises.expected(PAID)) == (0, NOBODY)
        assert promises.of(an_arrival("r")) is None

    def test_without_a_claim_the_oldest_of_the_tenant_comes_first(self) -> None:
        promises = Promises()
        for due_s in (10.0, 20.0):
            promises.make(an_arrival(claim=b""), place_s=due_s, due_s=due_s)
        for due_s in (10.0, 20.0):
            promise = promises.of(an_arrival(claim=b""))
            assert promise is not None
            assert promise.due_s == due_s
            promises.close(promise)

    def test_the_last_place_of_a_share_is_known_while_any_of_it_is_to_come(self) -> None:
        promises = Promises()
        promises.make(an_arrival("r", FREE), place_s=28.0, due_s=30.0)
        promises.make(an_arrival("s", FREE), place_s=29.0, due_s=31.0)
        assert (promises.last_place_s(FREE), promises.last_place_s(PAID)) == (29.0, -math.inf)
        promises.forget_lapsed(30 + GRACE_S)
        assert promises.last_place_s(FREE) == 29.0
        promises.forget_lapsed(31 + GRACE_S)
        assert promises.last_place_s(FREE) == -math.inf

    def test_are_reckoned_with_as_they_were_kept_of_late(self) -> None:
        """Ten were made, nobody came when the first was due, and the client of the second did."""
        promises = Promises()
        for number in range(10):
            promises.make(an_arrival(str(number), PAID, 100), place_s=float(number), due_s=float(number))
        promises.make(an_arrival("r", FREE), place_s=20.0, due_s=20.0)
        promises.forget_lapsed(GRACE_S)
        kept = 1 - RETURN_FADES
        part = kept / (kept + 1)
        assert promises.expected(PAID) == (Work(900 * part, 9 * part), 4)
        second = promises.of(an_arrival("again", PAID, claim=b"1"))
        assert second is not None
        promises.close(second)
        part = (kept * kept + 1) / (kept * (kept + 1) + 1)
        assert promises.expected(PAID).work == pytest.approx((800 * part, 8 * part))
        assert promises.expected(FREE).num_requests == 1

    def test_of_clients_that_never_come_are_hardly_reckoned_with(self) -> None:
        promises = Promises()
        for number in range(100):
            promises.make(an_arrival(str(number), PAID, 100), place_s=float(number), due_s=float(number))
        promises.forget_lapsed(50 + GRACE_S)
        assert promises.expected(PAID).work.tokens < 0.01 * 4900
        assert promises.expected(PAID).num_requests == 0

    def test_are_so_many_at_most(self) -> None:
        promises = Promises()
        for number in range(MAX_PROMISES + 1):
            promises.make(an_arrival(str(number)), place_s=1.0, due_s=1.0)
        assert len(promises) == MAX_PROMISES


class TestDeadlineWatch:
    def test_tells_each_once_by_whichever_deadline_passes_first(self) -> None:
        watch = DeadlineWatch()
        watch.add("first token", 10.0, 600.0, now=0.0)
        watch.add("answer", 10.0, 5.0, now=0.0)
        watch.add("both", 7.0, 7.0, now=0.0)
        watch.add("left", 1.0, 1.0, now=0.0)
        watch.discard("left")
        assert (watch.next_s(), watch.take_due(4.9)) == (5.0, [])
        assert watch.take_due(7.0) == ["answer", "both"]
        assert (watch.next_s(), watch.take_due(10.0)) == (10.0, ["first token"])
        assert (watch.next_s(), watch.take_due(1000.0)) == (None, [])

    def test_time_without_a_replica_counts_against_the_answer_only(self) -> None:
        watch = DeadlineWatch()
        watch.add("early", 10.0, 600.0, now=0.0)
        watch.see(4.0, is_served=False)
        watch.add("held", 60.0, 600.0, now=50.0)
        watch.add("short", 60.0, 70.0, now=50.0)
        assert watch.next_s() == 70.0
        assert watch.take_due(94.0) == ["short"]
        watch.see(94.0, is_served=True)
        assert watch.next_s() == 100.0
        assert watch.take_due(100.0) == ["early"]
        assert watch.take_due(103.9) == []
        assert watch.take_due(104.0) == ["held"], "of its 10 s none had passed when the first replica came"


class TestBrownout:
    CONFIG = WaitingConfig()

    def test_begins_at_one_wait_and_ends_at_a_shorter_one(self) -> None:
        brownout = Brownout(self.CONFIG)
        seen = []
        for part in (0.0, 0.49, 0.5, 0.3, 0.25, 0.24, 0.4, 0.5):
            brownout.see(part)
            seen.append(brownout.is_on)
        assert seen == [False, False, True, True, True, False, False, True]

    def test_lowers_batch_and_whoever_weighs_less_than_the_heaviest_in_line(self) -> None:
        brownout = Brownout(self.CONFIG)
        assert [brownout.max_tokens(share, 4, 4096) for share in (PAID, FREE, BATCH)] == [4096] * 3
        brownout.see(0.6)
        assert [brownout.max_tokens(share, 4, 4096) for share in (PAID, FREE, BATCH)] == [4096, 256, 256]
        assert brownout.max_tokens(FREE, 4, 100) == 100
        assert brownout.max_tokens(FREE, 1, 4096) == 4096, "there is nobody to yield to"

    def test_goes_by_who_waits_of_the_interactive(self) -> None:
        line = InteractiveLine()
        assert (line.heaviest, line.work) == (0, Work(0.0, 0))
        entries = [an_arrival(str(n), share, 100).queued for n, share in enumerate((FREE, PAID, FREE, BATCH))]
        entries[0] = entries[0]._replace(num_siblings=5)
        for entry in entries:
            line.add(entry)
        assert (line.heaviest, line.work) == (4, Work(300.0, 7))
        for entry in entries[1:]:
            line.remove(entry)
        assert (line.heaviest, line.work) == (1, Work(100.0, 5))


@pytest.mark.parametrize(
    "field",
    [
        "interactive_deadline_s", "batch_deadline_s", "max_waiting", "max_held", "brownout_ends_at",
        "brownout_max_tokens",
    ],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_named(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        WaitingConfig(**{field: -1})


def test_a_deadline_is_the_classs_and_no_later_than_the_clients_own() -> None:
    config = WaitingConfig()
    assert config.first_token_by_s("interactive", 100.0, 700.0) == 110.0
    assert config.first_token_by_s("batch", 100.0, 700.0) == 700.0
    assert config.first_token_by_s("interactive", 100.0, 103.0) == 103.0
