"""Reading a spool back: positions, torn tails, damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.spool.folder import read_checkpoint, write_checkpoint
from tenants.spool.line import MAX_LINE_BYTES, encode
from tenants.spool.reading import START, Position, read_lines, utc_day
from tests.builders_spool import NOON, a_settlement

LINES = [encode(a_settlement(number)) for number in range(6)]


def write(folder: Path, day: str, data: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{day}.jsonl").write_bytes(data)


def ids(folder: Path, begin: Position = START, end: Position | None = None) -> list[str | None]:
    return [line.entry and line.entry.request_id for line in read_lines(folder, begin, end)]


def test_lines_come_in_the_order_of_days(tmp_path: Path) -> None:
    write(tmp_path, "2026-12-01", LINES[2])
    write(tmp_path, "2026-11-30", LINES[0] + LINES[1])
    assert ids(tmp_path) == ["r0", "r1", "r2"]


def test_each_line_s_end_is_where_the_next_begins(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-30", b"".join(LINES[:3]))
    write(tmp_path, "2026-12-01", b"".join(LINES[3:]))
    ends = [START, *(line.end for line in read_lines(tmp_path))]
    assert ends == sorted(ends)
    for first, begin in enumerate(ends):
        for last, end in enumerate(ends[first:], first):
            if end is not START:
                assert ids(tmp_path, begin, end) == [f"r{number}" for number in range(first, last)]


def test_a_torn_tail_is_nobody_s_loss_and_left_out(tmp_path: Path) -> None:
    for length in range(1, len(LINES[1]), 7):
        write(tmp_path, "2026-11-30", LINES[0] + LINES[1][:length])
        assert ids(tmp_path) == ["r0"]


def test_a_torn_line_in_an_earlier_day_is_damage(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-30", LINES[0] + LINES[1][:-1])
    write(tmp_path, "2026-12-01", LINES[2])
    assert ids(tmp_path) == ["r0", None, "r2"]


def test_damage_in_the_middle_costs_that_line_only_and_is_named(tmp_path: Path) -> None:
    damaged = LINES[1].replace(b"r1", b"r7")
    write(tmp_path / "g1", "2026-11-30", LINES[0] + damaged + LINES[2])
    (line,) = [line for line in read_lines(tmp_path / "g1") if line.entry is None]
    assert line.place == f"g1/2026-11-30.jsonl, byte {len(LINES[0])}: its checksum does not fit"
    assert ids(tmp_path / "g1") == ["r0", None, "r2"]


@given(st.integers(1, 4), st.binary(max_size=200))
def test_whatever_stands_in_a_line_s_place_the_lines_around_it_are_read(
    tmp_path_factory: pytest.TempPathFactory, place: int, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    write(folder, "2026-11-30", b"".join([*LINES[:place], junk + b"\n", *LINES[place + 1 :]]))
    found = [one for one in ids(folder) if one is not None]
    assert found == [f"r{number}" for number in range(6) if number != place]


def test_a_line_without_end_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    write(tmp_path, "2026-11-30", LINES[0] + bytes(3 * MAX_LINE_BYTES) + b"\n" + LINES[1])
    found = ids(tmp_path)
    assert (found[0], found[-1]) == ("r0", "r1")
    assert set(found[1:-1]) == {None}


def test_a_checkpoint_comes_back_and_a_lost_or_damaged_one_is_the_start(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) == START
    write_checkpoint(tmp_path, Position("2026-11-30", 5))
    assert read_checkpoint(tmp_path) == Position("2026-11-30", 5)
    for damage in (b"", b"[1", b'["2026-11-30",-1]', b"{}", b"\xff"):
        (tmp_path / "checkpoint").write_bytes(damage)
        assert read_checkpoint(tmp_path) == START


def test_days_are_utc() -> None:
    assert utc_day(NOON) == "2026-11-30"
    assert utc_day(NOON + 43200) == "2026-12-01"
    assert utc_day(NOON + 43199.9) == "2026-11-30"
