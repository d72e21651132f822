"""Credit at the gateway: what is outstanding, by request, against the window that the replica told."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission_windows import LEAD, full_window
from cluster.credit import KEPT_SEATS, NO_CREDIT, Balance, Credit, Outstanding, Wanted
from engine.request import Request
from tests.cluster.fake_replica import row
from tests.cluster.virtual_gateways import a_request

STEP_TOKENS = 256
LONG = STEP_TOKENS // 2 + 1


def asks(request_id: str, tokens: int, n: int = 1) -> Request:
    return a_request(request_id, tokens, 8, n)


def counted(outstanding: Outstanding) -> Credit:
    return Credit(outstanding.tokens, outstanding.requests)


def balance(window: Credit | None, *sent: Request) -> Balance:
    balance = Balance(STEP_TOKENS)
    balance.hear((), window)
    for request in sent:
        balance.outstanding.add(request)
    return balance


class TestOutstanding:
    @pytest.fixture
    def outstanding(self) -> Outstanding:
        return Outstanding(STEP_TOKENS)

    def test_the_prompt_counts_until_the_first_output_and_the_seat_until_the_end(
        self, outstanding: Outstanding
    ) -> None:
        outstanding.add(asks("r", 40))
        assert counted(outstanding) == (40, 1)
        outstanding.hear([row("r", 0, 5)])
        assert counted(outstanding) == (0, 1)
        outstanding.hear([row("r", 1, 6), row("r", 2, 7, finish="stop")])
        assert counted(outstanding) == (0, 0)

    @pytest.mark.parametrize("finish", ["abort", "error"])
    def test_an_end_before_the_first_token_takes_the_prompt_along(
        self, outstanding: Outstanding, finish: str
    ) -> None:
        outstanding.add(asks("r", 40))
        outstanding.hear([row("r", 0, finish=finish)])
        assert counted(outstanding) == (0, 0)

    def test_each_sibling_has_a_seat_and_the_prompt_counts_once(self, outstanding: Outstanding) -> None:
        outstanding.add(asks("r", 40, n=3))
        assert counted(outstanding) == (40, 3)
        outstanding.hear([row("r", 0, 5, sibling=sibling) for sibling in range(3)])
        outstanding.hear([row("r", 1, 6, sibling=1, finish="stop")])
        assert counted(outstanding) == (0, 2)

    def test_a_prompt_counts_as_one_step_at_most(self, outstanding: Outstanding) -> None:
        outstanding.add(asks("r", 32_000))
        assert counted(outstanding) == (STEP_TOKENS, 1)
        outstanding.drop("r")
        assert counted(outstanding) == (0, 0)

    def test_a_prompt_of_which_nothing_is_left_to_compute_is_not_there_for_ever(
        self, outstanding: Outstanding
    ) -> None:
        outstanding.add(asks("r", 0))
        outstanding.hear([row("r", 0, 5)])
        assert not outstanding.has_prompt_of("")

    def test_an_id_that_is_there_counts_once(self, outstanding: Outstanding) -> None:
        outstanding.add(asks("r", 40))
        outstanding.add(asks("r", 50))
        assert counted(outstanding) == (40, 1)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["add", "token", "end", "drop"]), st.sampled_from("abc"), st.integers(0, 600)
            ),
            max_size=60,
        )
    )
    def test_whatever_happens_it_is_what_a_plain_model_counts(
        self, story: list[tuple[str, str, int]]
    ) -> None:
        outstanding = Outstanding(STEP_TOKENS)
        uncomputed: set[str] = set()
        tokens: Counter[str] = Counter()
        seats: Counter[str] = Counter()
        for what, name, number in story:
            if what == "add":
                outstanding.add(asks(name, number, n=1 + number % 3))
                if not seats[name]:
                    uncomputed.add(name)
                    tokens[name], seats[name] = min(number, STEP_TOKENS), 1 + number % 3
            elif what == "drop":
                outstanding.drop(name)
                uncomputed.discard(name)
                tokens[name] = seats[name] = 0
            else:
                outstanding.hear([row(name, 0, 1, finish="stop" if what == "end" else None)])
                uncomputed.discard(name)
                tokens[name] = 0
                seats[name] = max(0, seats[name] - (what == "end"))
            assert counted(outstanding) == (tokens.total(), seats.total())
            assert outstanding.has_prompt_of("") == bool(uncomputed)
            assert outstanding.first_prompts.tokens <= outstanding.tokens


class TestBalance:
    def test_before_the_first_message_there_is_no_credit(self) -> None:
        assert not Balance(STEP_TOKENS).has_credit()
        assert not balance(NO_CREDIT).has_credit()

    @pytest.mark.parametrize(
        ("window", "part"),
        [(Credit(64, 2), 0.25), (Credit(32, 2), 0.25), (Credit(64, 1), 0.25), (NO_CREDIT, 0.0), (None, 1.0)],
    )
    def test_is_a_part_of_all_windows_as_it_is_of_what_it_has_more_of(
        self, window: Credit | None, part: float
    ) -> None:
        assert balance(window).part_of(Credit(256, 8)) == part

    def test_is_no_more_than_all_windows(self) -> None:
        """With room to start on top."""
        assert balance(Credit(257, 9)).part_of(Credit(256, 8)) == 1.0

    def test_without_a_window_there_is_no_limit(self) -> None:
        assert balance(None, *(asks(str(number), 500) for number in range(50))).has_credit()

    @pytest.mark.parametrize(
        ("tokens", "n", "has_credit"),
        [(99, 1, True), (100, 1, False), (99, 4, False), (99, 3, True), (400, 9, False)],
    )
    def test_credit_is_what_both_windows_leave(self, tokens: int, n: int, has_credit: bool) -> None:
        """A request may itself take either beyond."""
        assert balance(Credit(100, 4), asks("r", tokens, n)).has_credit() is has_credit

    def test_a_window_that_shrinks_takes_credit_and_no_request(self) -> None:
        one = balance(Credit(100, 4), asks("a", 10), asks("b", 10))
        assert not one.hear((), Credit(100, 2))
        assert not one.has_credit()
        assert one.hear([row("a", 0, 5, finish="stop")], Credit(100, 2))
        assert one.has_credit()

    def test_more_credit_is_told_whatever_it_comes_from(self) -> None:
        one = balance(Credit(100, 4), asks("a", 10))
        assert one.hear([row("a", 0, 5)], Credit(100, 4))
        assert not one.hear([row("a", 1, 6)], Credit(100, 4))
        assert one.hear((), Credit(101, 3))
        assert one.hear((), None)

    def test_long_prompts_leave_half_of_the_window_to_short_ones(self) -> None:
        one = balance(Credit(512, 8), *(asks(f"long-{number}", 32_000) for number in range(3)))
        assert not one.has_credit(Wanted(LONG))
        assert one.has_credit(Wanted(LONG - 1))
        one.outstanding.add(asks("short-1", 128))
        assert one.has_credit(Wanted(1))
        one.outstanding.add(asks("short-2", 128))
        assert not one.has_credit(Wanted(1))


class TestWhatIsKept:
    """64 tokens, a quarter of a step, and of 20 seats 2: for interactive tenants without a prompt there."""

    WINDOW = Credit(512, 20)
    FLOOD, QUIET, ANOTHER = Wanted(10, "flood"), Wanted(10, "quiet"), Wanted(10, "another")

    @staticmethod
    def asks(request_id: str, tokens: int, n: int = 1, flow_id: str = "flood") -> Request:
        return a_request(request_id, tokens, 8, n, flow_id)

    def flooded(self, window: Credit) -> Balance:
        """By prompts that are all behind the first one of their tenant."""
        one = balance(window, self.asks("first", 1), *(self.asks(str(number), 128) for number in range(4)))
        one.hear([row("first", 0, 5)], window)
        return one

    @pytest.mark.parametrize("window", [WINDOW, Credit(1, 20)])
    def test_of_the_tokens_is_for_who_has_no_prompt_there_whatever_the_window(self, window: Credit) -> None:
        one = self.flooded(window)
        assert not one.has_credit(self.FLOOD)
        assert one.has_credit(self.QUIET)
        assert one.has_credit()
        assert not one.has_credit(self.QUIET._replace(priority=1))
        one.outstanding.add(self.asks("q1", 10, flow_id="quiet"))
        assert not one.has_credit(self.QUIET)
        assert one.has_credit(self.ANOTHER)

    def test_is_used_up_by_first_prompts_and_told_when_there_is_more(self) -> None:
        one = self.flooded(self.WINDOW)
        one.outstanding.add(self.asks("q1", 63, flow_id="quiet"))
        assert one.has_credit(self.ANOTHER)
        one.outstanding.add(self.asks("a1", 1, flow_id="another"))
        assert not one.has_credit(Wanted(10, "a third"))
        assert not one.has_credit()
        assert one.hear([row("q1", 0, 5)], self.WINDOW)
        assert one.has_credit(Wanted(10, "a third"))

    def test_of_the_seats_is_for_who_has_no_prompt_there(self) -> None:
        one = balance(self.WINDOW, self.asks("r", 1, n=18))
        assert not one.has_credit(self.FLOOD)
        assert one.has_credit(self.QUIET)
        one.outstanding.add(self.asks("q1", 1, n=2, flow_id="quiet"))
        assert not one.has_credit(self.ANOTHER)

    def test_is_not_used_up_for_short_prompts_by_a_long_one(self) -> None:
        one = self.flooded(self.WINDOW)
        one.outstanding.add(self.asks("q1", 32_000, flow_id="quiet"))
        assert one.has_credit(self.ANOTHER)
        assert not one.has_credit(self.ANOTHER._replace(tokens=LONG))

    def test_is_open_again_once_the_prompt_is_computed_or_gone(self) -> None:
        one = self.flooded(self.WINDOW)
        for number in range(2):
            one.outstanding.add(self.asks(f"q{number}", 10, flow_id="quiet"))
        one.hear([row("q0", 0, 5)], self.WINDOW)
        assert not one.has_credit(self.QUIET)
        one.outstanding.drop("q1")
        assert one.has_credit(self.QUIET)

    def test_of_a_small_window_is_no_seat(self) -> None:
        assert balance(Credit(1, 1)).has_credit(self.FLOOD)

    @given(st.integers(1, 10_000))
    def test_seats_come_on_top_of_what_all_may_have(self, seats: int) -> None:
        all_may_have = seats + -(-seats // LEAD)
        window = full_window(256, seats)
        assert window.requests - window.requests // KEPT_SEATS >= all_may_have
        assert window.requests <= all_may_have * 10 / 9 + 1
