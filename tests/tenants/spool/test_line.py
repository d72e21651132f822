"""One line: what was encoded comes back, and damage is seen."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.spool.line import MAX_LINE_BYTES, CorruptLine, decode, encode
from tests.builders_spool import a_settlement

LINE = encode(a_settlement())


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


@given(st.integers(0, len(LINE) - 1), st.integers(1, 255))
def test_one_changed_byte_is_seen(place: int, change: int) -> None:
    damaged = bytearray(LINE)
    damaged[place] ^= change
    with pytest.raises(CorruptLine):
        decode(bytes(damaged))


@given(st.integers(0, len(LINE) - 1))
def test_a_part_of_a_line_is_none(length: int) -> None:
    with pytest.raises(CorruptLine):
        decode(LINE[:length])


def test_a_whole_line_that_is_no_settlement_is_told_without_its_content() -> None:
    from tenants.spool import line

    with pytest.raises(CorruptLine) as caught:
        decode(line._framed(b'{"secret":1}'))
    assert str(caught.value) == "it is no settlement"
