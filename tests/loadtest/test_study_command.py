"""`headrace bench paging|batching|chunking` as its user meets them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from loadtest.bench_command import bench
from loadtest.studies.batching import BatchingStudy
from loadtest.studies.chunking import ChunkingStudy
from loadtest.studies.paging import PagingStudy

SMALL = {
    "paging": ["--contexts", "5", "--requests", "50"],
    "batching": ["--slots", "8", "--requests", "50"],
    "chunking": ["--requests", "10"],
}
STUDIES = {"paging": PagingStudy, "batching": BatchingStudy, "chunking": ChunkingStudy}


def call(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments, catch_exceptions=False)


@pytest.mark.parametrize("name", SMALL)
def test_it_prints_a_table_of_two_and_the_last_line_is_json(name: str) -> None:
    result = call(name, *SMALL[name], "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["held"]
    for row in figures["rows"]:
        assert next(iter(row.values())) in result.stdout
    assert all(key.replace("_", " ") in result.stdout for key in list(figures["rows"][0])[1:])
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80


@pytest.mark.parametrize("name", SMALL)
def test_a_bound_that_is_missed_exits_1(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"way": "one", "figure": 1}, {"way": "other", "figure": 2}]
    names = ("pool_tokens", "context", "users_gain", "slots", "throughput_gain", "short_prompt_tokens")
    figures = {**dict.fromkeys((*names, "long_prompt_tokens"), 1), "held": False, "rows": rows}
    monkeypatch.setattr(STUDIES[name], "run", lambda study: figures)
    assert call(name, *SMALL[name]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["paging", "--contexts", "0"], "--contexts"),
        (
            ["paging", "--contexts", "20", "--requests", "199"],
            "--requests: must be at least ten times --contexts",
        ),
        (["batching", "--slots", "1"], "--slots"),
        (["batching", "--slots", "32", "--requests", "63"], "--requests: must be at least twice --slots"),
        (["chunking", "--long-prompt", "8191"], "--long-prompt"),
        (["chunking", "--requests", "9"], "--requests"),
    ],
)
def test_a_bad_option_exits_2_and_is_named(arguments: list[str], named: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert named in " ".join(result.stderr.split())
