"""Objectives: all of them, or not met."""

import pytest

from loadtest.slo import Slo, parse_slo
from tests.loadtest.test_summary import a_record, failed


def test_it_is_read_and_written_alike() -> None:
    slo = parse_slo("ttft_ms=1000, tpot_ms=99.5")
    assert slo == Slo(ttft_ms=1000, tpot_ms=99.5)
    assert slo.bounds == {"ttft_ms": 1000, "tpot_ms": 99.5}
    assert str(slo) == "ttft_ms=1000,tpot_ms=99.5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' does not begin with one of ttft_ms, tpot_ms, e2e_ms"),
        ("itl_ms=1", "'itl_ms=1' does not begin"),
        ("ttft_ms", "ttft_ms must be a number of milliseconds, not ''"),
        ("ttft_ms=fast", "not 'fast'"),
        ("ttft_ms=0", "ttft_ms must be above 0"),
        ("ttft_ms=nan", "ttft_ms must be above 0"),
        ("e2e_ms=inf", "e2e_ms must be above 0"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_slo(text)


@pytest.mark.parametrize(
    ("slo", "is_met"),
    [
        (Slo(), True),
        (Slo(ttft_ms=500), True),
        (Slo(ttft_ms=499), False),
        (Slo(tpot_ms=125), True),
        (Slo(tpot_ms=124), False),
        (Slo(e2e_ms=1000), True),
        (Slo(ttft_ms=500, e2e_ms=999), False),
    ],
)
def test_every_bound_counts(slo: Slo, is_met: bool) -> None:
    assert slo.is_met_by(a_record()) is is_met


def test_a_failure_meets_nothing_and_one_token_meets_any_tpot() -> None:
    assert not Slo().is_met_by(failed("429"))
    assert Slo(tpot_ms=1).is_met_by(a_record(token_times=(10.5,), output_tokens=1))
