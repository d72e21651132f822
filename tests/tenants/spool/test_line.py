"""One line: what was encoded comes back, and damage is seen."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.spool.line import MAX_LINE_BYTES, CorruptLine, decode, encode
from tests.builders_spool import NOON, a_settlement, an_adjustment

LINE = encode(a_settlement())
ADJUSTED = encode(an_adjustment())


def test_a_line_is_json_that_other_programs_read() -> None:
    told = json.loads(LINE)
    assert told["settlement"]["request_id"] == "r1"
    assert told["settlement"]["cost"] == 1


@given(st.text(max_size=80), st.floats(0, 1e11), st.integers(0, 2**53))
def test_what_was_encoded_comes_back_in_one_line(text: str, moment: float, cost: int) -> None:
    settlement = a_settlement(model=text, started_at=moment, cost=cost)
    line = encode(settlement)
    assert line.index(b"\n") == len(line) - 1 < MAX_LINE_BYTES
    assert decode(line) == settlement


def test_an_adjustment_says_who_made_it_when_and_comes_back() -> None:
    told = json.loads(ADJUSTED)["adjustment"]
    assert (told["by"], told["at"]) == ({"tenant_id": "admin", "key_id": "key_9"}, NOON)
    assert decode(ADJUSTED) == an_adjustment()


@given(st.sampled_from([LINE, ADJUSTED]), st.integers(0, len(ADJUSTED) - 1), st.integers(1, 255))
def test_one_changed_byte_is_seen(line: bytes, place: int, change: int) -> None:
    damaged = bytearray(line)
    damaged[place] ^= change
    with pytest.raises(CorruptLine):
        decode(bytes(damaged))


@given(st.integers(0, len(LINE) - 1))
def test_a_part_of_a_line_is_none(length: int) -> None:
    with pytest.raises(CorruptLine):
        decode(LINE[:length])


def test_a_whole_line_that_holds_neither_is_told_without_its_content() -> None:
    from tenants.spool import line

    with pytest.raises(CorruptLine) as caught:
        decode(line._framed(line._OF_ADJUSTMENT, b'{"secret":1}'))
    assert str(caught.value) == "it is no settlement and no adjustment"
