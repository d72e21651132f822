"""A trace's file and times: read strictly, spread inside its ticks, warped, nothing dropped."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.trace import TraceRow, read_trace, trace_arrivals


def a_line(**fields: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]} | fields)


def a_file(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_at(*timestamps: int) -> list[TraceRow]:
    return [TraceRow(at, 1, 1, (0,)) for at in timestamps]


def test_rows_are_read_as_they_are(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_line(), a_line(timestamp=3000, input_length=512, output_length=1, hash_ids=[7]))
    assert read_trace(path) == (TraceRow(0, 600, 5, (0, 1)), TraceRow(3000, 512, 1, (7,)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "truncated"),
        ("", "truncated"),
        ("[]", "Expected `object`, got `array`"),
        (a_line(kind="chat"), "unknown field `kind`"),
        ('{"timestamp": 0, "input_length": 1, "hash_ids": [0]}', "missing required field `output_length`"),
        (a_line(timestamp=-1), r"`int` >= 0 - at `\$.timestamp`"),
        (a_line(timestamp=0.5), r"Expected `int`, got `float` - at `\$.timestamp`"),
        (a_line(input_length=0, hash_ids=[]), r"`int` >= 1 - at `\$.input_length`"),
        (a_line(output_length="5"), r"Expected `int`, got `str` - at `\$.output_length`"),
        (a_line(hash_ids=[0, -1]), r"`int` >= 0 - at `\$.hash_ids"),
        (a_line(hash_ids=[0]), "input_length 600 takes 2 hash_ids, not 1"),
        (a_line(input_length=1024, hash_ids=[0, 1, 2]), "input_length 1024 takes 2 hash_ids, not 3"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line: str, message: str, tmp_path: Path) -> None:
    path = a_file(tmp_path, a_line(), line, a_line())
    with pytest.raises(ValueError, match=f"trace.jsonl line 2: .*{message}"):
        read_trace(path)


def test_time_does_not_run_backwards(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_line(timestamp=3000), a_line(timestamp=2999))
    with pytest.raises(ValueError, match="line 2: timestamp 2999 is before the line above, 3000"):
        read_trace(path)


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.jsonl cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.jsonl")
    (tmp_path / "trace.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds no row"):
        read_trace(tmp_path / "trace.jsonl")


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40),
    st.floats(0.01, 4),
    st.integers(),
)
def test_every_row_is_due_inside_its_tick_in_warped_time(
    ticks: list[int], time_scale: float, seed: int
) -> None:
    stamps = sorted(3000 * tick for tick in ticks)
    times = trace_arrivals(rows_at(*stamps), tick_s=3.0, time_scale=time_scale, seed=seed)
    assert len(times) == len(stamps)
    assert list(times) == sorted(times)
    for stamp, time in zip(stamps, times, strict=True):
        begins = (stamp - stamps[0]) / 1000
        assert begins * time_scale <= time <= (begins + 3.0) * time_scale
    assert times == trace_arrivals(rows_at(*stamps), tick_s=3.0, time_scale=time_scale, seed=seed)


def test_a_group_is_spread_evenly_over_its_tick() -> None:
    times = trace_arrivals(rows_at(*[0] * 3000), tick_s=3.0, time_scale=1.0, seed=0)
    for third in range(3):
        assert sum(third <= time < third + 1 for time in times) == pytest.approx(1000, rel=0.1)


def test_exact_times_stay_exact() -> None:
    times = trace_arrivals(rows_at(500, 750, 2500), tick_s=0.0, time_scale=0.5, seed=0)
    assert times == (0.0, 0.125, 1.0)


def test_times_ascend_where_a_tick_comes_a_little_early() -> None:
    times = trace_arrivals(rows_at(*[0] * 3000, *[2990] * 3000), tick_s=3.0, time_scale=1.0, seed=0)
    assert list(times) == sorted(times)
