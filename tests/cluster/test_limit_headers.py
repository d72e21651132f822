"""How limits are told: in headers of every answer, and in the error that refuses."""

from __future__ import annotations

import pytest

from cluster.api.limit_headers import duration, limit_headers
from cluster.api.refusals import refusal
from tenants.ledger.grant import Gauge, Kind, Refused, Standing


def a_gauge(kind: Kind, remaining: int, limit: int = 100, key_id: str | None = None) -> Gauge:
    return Gauge(kind=kind, key_id=key_id, limit=limit, remaining=remaining, reset_s=61.5)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.02, "20ms"),
        (0.9991, "1s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3723, "1h2m3s"),
        (86400.001, "24h0m0.001s"),
    ],
)
def test_a_duration_is_written_as_openai_writes_it(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_each_limit_has_three_headers() -> None:
    assert limit_headers(Standing((a_gauge("requests", 99),))) == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "99",
        "x-ratelimit-reset-requests": "1m1.5s",
    }


def test_tokens_are_those_that_are_scarcer() -> None:
    standing = Standing((a_gauge("input_tokens", 500, limit=1000), a_gauge("output_tokens", 40)))
    assert limit_headers(standing)["x-ratelimit-remaining-tokens"] == "40"


def test_a_key_s_own_limit_counts_where_it_is_tighter() -> None:
    standing = Standing((a_gauge("requests", 90), a_gauge("requests", 3, limit=10, key_id="key_1")))
    assert limit_headers(standing)["x-ratelimit-limit-requests"] == "10"


def test_no_limit_no_header() -> None:
    assert limit_headers(Standing()) == {}


def test_from_four_fifths_on_a_limit_is_named() -> None:
    standing = Standing((a_gauge("requests", 21), a_gauge("budget_day", 20), a_gauge("concurrency", 5)))
    assert limit_headers(standing)["x-headrace-soft-limits"] == "budget_day,concurrency"


class TestRefusals:
    @staticmethod
    def of(kind: Kind, retry_after_s: float | None, *, is_never: bool = False) -> Refused:
        standing = Standing((a_gauge(kind, 0),))
        return Refused(
            kind=kind, key_id=None, retry_after_s=retry_after_s, is_never=is_never, standing=standing
        )

    @pytest.mark.parametrize("kind", ["requests", "input_tokens", "output_tokens"])
    def test_a_rate_is_429_and_says_when(self, kind: Kind) -> None:
        error = refusal(self.of(kind, 2.25))
        assert (error.status, error.code, error.retry_after_s) == (429, "rate_limit_exceeded", 2.25)
        assert "just now: of at most 100 at once, 0 are left." in error.message

    def test_a_rate_is_told_by_what_may_be_taken_at_once_and_is_left(self) -> None:
        standing = Standing((a_gauge("requests", 9, key_id="key_1"), a_gauge("input_tokens", 40)))
        refused = Refused(
            kind="input_tokens", key_id=None, retry_after_s=1.0, is_never=False, standing=standing
        )
        assert refusal(refused).message == (
            "This tenant has too little left of its input tokens per minute just now: "
            "of at most 100 at once, 40 are left."
        )

    def test_concurrency_is_429_with_a_code_of_its_own(self) -> None:
        error = refusal(self.of("concurrency", 1.0))
        assert (error.status, error.code) == (429, "concurrency_limit_exceeded")

    @pytest.mark.parametrize("kind", ["budget_day", "budget_month"])
    def test_a_budget_is_402_and_names_no_time(self, kind: Kind) -> None:
        error = refusal(self.of(kind, None))
        assert (error.status, error.code, error.retry_after_s) == (402, "insufficient_quota", None)
        assert error.body()["error"]["type"] == "insufficient_quota"

    def test_what_no_waiting_satisfies_is_400(self) -> None:
        error = refusal(self.of("input_tokens", None, is_never=True))
        assert (error.status, error.code, error.retry_after_s) == (400, "limit_never_satisfiable", None)
        assert "at once of its input tokens per minute, 100." in error.message

    def test_the_headers_of_a_refusal_come_from_the_same_numbers(self) -> None:
        assert refusal(self.of("requests", 1.0)).headers["x-ratelimit-remaining-requests"] == "0"
