"""What operators type and read: fields of terms, lengths of time, money, tables."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admin_cli.durations import seconds_of
from cluster.admin_cli.tables import MONEY, money, print_fields, print_rows, shown, shown_field, units
from cluster.admin_cli.terms_text import DEFAULT, assignments, merged, read_terms
from tenants.terms import Limits, Terms


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("requests_per_min=100", 100),
        ("budget_day=1_000_000", 1_000_000),
        ("budget_day=none", None),
        ("budget_day=default", DEFAULT),
        ("weight=1000", 1000),
        ("models=a,b", ["a", "b"]),
        ("models=7", ["7"]),
        ("models=none", None),
        ("service_class=batch", "batch"),
        ("offline=default", DEFAULT),
    ],
)
def test_a_field_is_read_as_its_type(pair: str, value: Any) -> None:
    assert list(read_terms(assignments([pair]), Terms).values()) == [value]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["requests_per_min"], "'requests_per_min' is not field=value"),
        (["=5"], "'=5' is not field=value"),
        (["weight=1", "weight=2"], "weight is given twice"),
        (["wait=1"], "there is no field wait; there are requests_per_min, "),
        (["weight=0"], "weight=0: Expected `int` >= 1"),
        (["weight=none"], "weight=none: Expected `int`, got `null`"),
        (["weight=1.5"], "weight=1.5: Expected `int`, got `str`"),
        (["weight="], "weight=: Expected `int`, got `str`"),
        (["weight=٣"], "weight=٣: Expected `int`, got `str`"),
        (["budget_day=" + "9" * 5000], "Expected `int | null`, got `str`"),
        (["budget_day=1000000000000001"], "budget_day=1000000000000001: Expected `int` <= 1000000000000000"),
        (["service_class=slow"], "service_class=slow: there is no slow; there are interactive, batch"),
    ],
)
def test_a_field_that_does_not_fit_is_named(pairs: list[str], said: str) -> None:
    with pytest.raises(click.BadParameter) as raised:
        read_terms(assignments(pairs), Terms)
    assert raised.value.message.startswith(said) or said in raised.value.message


def test_a_key_s_limits_are_fewer_than_a_tier_s_terms() -> None:
    with pytest.raises(click.BadParameter, match="there is no field weight"):
        read_terms({"weight": "1"}, Limits)


def test_default_drops_what_was_there_and_the_rest_stays() -> None:
    before = {"weight": 2, "budget_day": 5}
    assert merged(before, {"weight": DEFAULT, "burst_s": 9}) == {"budget_day": 5, "burst_s": 9}
    assert before == {"weight": 2, "budget_day": 5}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("45s", 45), ("90m", 5400), ("24h", 86_400), ("30d", 2_592_000), ("2w", 1_209_600)],
)
def test_lengths_of_time_have_a_unit(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "d", "-1d", "1.5h", "1 d", "1y", "٣d", "1d\n", "9" * 30 + "d"])
def test_what_is_no_length_of_time_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is no length of time"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("micro_units", "said"),
    [
        (0, "0"),
        (1, "0.000001"),
        (2_500_000, "2.5"),
        (10_000_000, "10"),
        (10**15, "1000000000"),
        (123_456_789_012_345_678, "123456789012.345678"),
        (-500_000, "-0.5"),
    ],
)
def test_units_are_exact(micro_units: int, said: str) -> None:
    assert units(micro_units) == said
    assert money(micro_units) == f"{micro_units} ({said})"


@given(st.integers(0, 10**15))
def test_units_read_back_as_the_micro_units(micro_units: int) -> None:
    whole, _, part = units(micro_units).partition(".")
    assert int(whole) * 10**6 + int(part.ljust(6, "0") or "0") == micro_units


def test_every_field_of_money_is_shown_as_such() -> None:
    assert {field for field in Terms.__struct_fields__ if "budget" in field or "price" in field} <= MONEY
    assert shown_field("budget_day", 5_000_000) == "5000000 (5)"
    assert shown_field("overrides.budget_day", 5_000_000) == "5000000 (5)"
    assert shown_field("budget_day", None) == "none"
    assert shown_field("created_at", 0.0) == "1970-01-01 00:00:00Z"


@given(st.text())
def test_nothing_that_is_shown_steers_a_terminal(text: str) -> None:
    assert shown(text).isprintable()


def test_rows_are_one_line_each_and_say_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("name", "n"), [("[red]x" + "y" * 300, 7), ("\x1b[31m", 12)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip(" ─")]
    assert lines == [["name", "n"], ["[red]x" + "y" * 300, "7"], ["\\x1b[31m", "12"]]


def test_an_object_is_a_line_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"name": "gold", "budget_day": 1_500_000, "models": ["a", "b"], "limits": {}})
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip()]
    told = {name: value.strip() for name, value in lines}
    assert told == {"name": "gold", "budget_day": "1500000 (1.5)", "models": "a,b", "limits": "-"}
