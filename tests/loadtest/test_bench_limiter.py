"""`headrace bench limiter` as its user meets it, with few decisions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis.asyncio import Redis

from cluster.redis_server import RedisServer
from loadtest.bench_command import bench
from loadtest.bench_limiter import LimiterLoad
from loadtest.limiter_worker import WorkerTimes, an_ask, coalesced
from tenants.ledger.grant import Granted
from tenants.ledger.redis_ledger import RedisLedger
from tenants.store import StoreUnavailable

KEYS = {"rate_per_s", "p50_ms", "p99_ms", "server_mean_ms", "round_trips", "bytes_per_tenant"}
SMALL = ["limiter", "--decisions", "100", "--tenants", "10", "--processes", "1", "--concurrency", "4"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound on times: the machine that runs tests may be busy."""
    monkeypatch.setattr("loadtest.bench_limiter.MIN_RATE_PER_S", 0)
    monkeypatch.setattr("loadtest.bench_limiter.MIN_COALESCED_PER_S", 0)
    monkeypatch.setattr("loadtest.bench_limiter.MAX_SERVER_MEAN_MS", float("inf"))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments, catch_exceptions=False)


def figures(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])


def test_it_decides_and_the_last_line_is_json(patient: None) -> None:
    result = call(*SMALL, "--json")
    assert result.exit_code == 0, result.output
    told = figures(result)
    assert told.keys() >= KEYS | {"held", "coalesced_per_s"}
    exact = ("held", "processes", "tenants", "decisions", "wrong")
    assert [told[key] for key in exact] == [True, 1, 10, 100, 0]
    assert told["p50_ms"] <= told["p99_ms"]
    assert 0.9 <= told["round_trips"] <= 1.2  # and the first words of four connections
    assert 500 <= told["bytes_per_tenant"] <= 5000
    assert 30 <= told["bytes_per_settled_request"] <= 500
    assert "decisions/s, a round trip each" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("bound", "value", "said"),
    [
        ("MIN_RATE_PER_S", 10**9, "rate_per_s 1000, at least 1000000000"),
        ("MIN_COALESCED_PER_S", 10**9, "coalesced_per_s 1000, at least 1000000000"),
        ("MAX_SERVER_MEAN_MS", 0.0, "server_mean_ms "),
    ],
)
def test_a_bound_that_is_missed_exits_1_and_is_named(
    patient: None, monkeypatch: pytest.MonkeyPatch, bound: str, value: float, said: str
) -> None:
    part = WorkerTimes(began=0.0, ended=0.1, times_ms=[1.0] * 100, wrong=0)
    monkeypatch.setattr("loadtest.bench_limiter.decide_part", _Parts(part))
    monkeypatch.setattr("loadtest.bench_limiter.ProcessPoolExecutor", _NoPool)
    monkeypatch.setattr(f"loadtest.bench_limiter.{bound}", value)
    result = call(*SMALL, "--json")
    assert (result.exit_code, figures(result)["held"]) == (1, False)
    (missed,) = figures(result)["missed"]
    assert missed.startswith(said)
    assert f"headrace bench limiter: missed: {missed}\n" in result.stderr


def test_a_wrong_decision_exits_1(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    part = WorkerTimes(began=0.0, ended=0.1, times_ms=[1.0] * 100, wrong=1)
    monkeypatch.setattr("loadtest.bench_limiter.decide_part", _Parts(part))
    monkeypatch.setattr("loadtest.bench_limiter.ProcessPoolExecutor", _NoPool)
    result = call(*SMALL, "--json")
    assert (result.exit_code, figures(result)["wrong"]) == (1, 2)
    assert figures(result)["missed"] == ["wrong 2, at most 0"]


def test_a_redis_that_cannot_be_asked_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> WorkerTimes:
        raise StoreUnavailable("Redis cannot be reached")

    monkeypatch.setattr("loadtest.bench_limiter.decide_part", refuse)
    monkeypatch.setattr("loadtest.bench_limiter.ProcessPoolExecutor", _NoPool)
    result = call(*SMALL)
    assert result.exit_code == 2
    assert "Redis cannot be reached" in result.stderr


class _Parts:
    """Stands for `decide_part`; some script is run all the same, so that Redis has counted one."""

    def __init__(self, part: WorkerTimes) -> None:
        self._part = part

    def __call__(self, url: str, *_: object) -> WorkerTimes:
        async def count() -> None:
            async with Redis.from_url(url, protocol=2) as client:
                await RedisLedger(client, timeout_s=30.0).standing("t", "m", ())

        asyncio.run(count())
        return self._part


class _NoPool:
    """Stands for the pool of processes: a thread of this one."""

    def __new__(cls, *_: object, **__: object) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(1)


def test_decisions_are_shared_out_among_the_processes() -> None:
    parts = LimiterLoad(num_decisions=7, num_processes=3).parts
    assert [list(part) for part in parts] == [[0, 3, 6], [1, 4], [2, 5]]


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("redis")
    server = RedisServer.start(home, home)
    yield server.url
    server.stop()


async def test_decisions_of_one_tick_are_one_pipeline(server_url: str) -> None:
    async with Redis.from_url(server_url, protocol=2) as client:
        ledger = RedisLedger(client, timeout_s=30.0)
        await ledger.load()
        reserve = coalesced(client, ledger)
        before = (await client.info("stats"))["total_reads_processed"]
        answers = await asyncio.gather(*(reserve(an_ask("p", n, 10)) for n in range(8)))
        after = (await client.info("stats"))["total_reads_processed"]
        assert all(isinstance(answer, Granted) for answer in answers)
        assert after - before == 2  # the pipeline, and INFO itself


async def test_a_coalesced_decision_that_fails_is_heard_of(server_url: str) -> None:
    async with Redis.from_url(server_url, protocol=2) as client:
        ledger = RedisLedger(client, timeout_s=30.0)
        await client.script_flush()
        with pytest.raises(StoreUnavailable):
            await coalesced(client, ledger)(an_ask("p", 0, 2))
        (loading,) = asyncio.all_tasks() - {asyncio.current_task()}
        await loading
