"""`headrace bench routing` as its user meets it, with clusters that are not started."""

import json
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cluster.preflight import plan_engine
from cluster.settings import ServeSettings
from engine.loading.source import resolve_model
from loadtest.bench_command import bench
from loadtest.load_command import load
from loadtest.load_options import Options, check
from loadtest.routing_bench import comparison
from loadtest.server_process import CannotStart, Server
from tests.loadtest.fake_api import fake_api, streamed

TRACE_LINE = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}\n'


def call(*arguments: str) -> Result:
    return CliRunner().invoke(bench, ["routing", *arguments], catch_exceptions=False)


class Clusters:
    """Starts nothing and remembers what it was asked. A load there is answered by `summary`."""

    def __init__(self) -> None:
        self.served: list[list[str]] = []
        self.loads: list[list[str]] = []
        self.num_up = 0
        self.summary = {
            "requests": 800, "rejected": 1, "errors": 0, "hit_rate": 0.7, "hits_of_ideal": 0.95,
            "ttft_p50_ms": 5.0, "ttft_p99_ms": 90.4, "in_flight_max_over_mean": 1.25, "achieved_rps": 20.0,
            "send_lag_p99_ms": 0.5, "interrupted": False, "statuses": {"ok": 799, "429": 1},
        }  # fmt: skip

    @contextmanager
    def serve(self, flags: Sequence[str]) -> Iterator[Server]:
        self.served.append(list(flags))
        self.num_up += 1
        try:
            yield Server(1, "hr-demo")
        finally:
            self.num_up -= 1

    def load(self, server: Server, flags: Sequence[str]) -> dict:
        assert (self.num_up, server) == (1, Server(1, "hr-demo"))
        self.loads.append(list(flags))
        return self.summary


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    clusters = Clusters()
    monkeypatch.setattr(comparison, "served", clusters.serve)
    monkeypatch.setattr(comparison, "_load", clusters.load)
    return clusters


def test_each_policy_meets_each_case_on_a_new_cluster(clusters: Clusters) -> None:
    result = call("--policy", "token-load", "--policy", "affinity", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["held"], figures["failures"]) == (True, [])
    names = [(row["case"], row["policy"]) for row in figures["rows"]]
    assert names == [(case, policy) for case in ("even", "hot") for policy in ("token-load", "affinity")]
    assert [flags[2] for flags in clusters.served] == ["--routing=token-load", "--routing=affinity"] * 2
    assert all("--seed=3" in load and "--requests=800" in load for load in clusters.loads)
    assert ["--hot-share=0.8" in load for load in clusters.loads] == [False, False, True, True]
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80
    for shown in ("hot", "affinity", "70.0%", "95.0%", "90 ms", "1.25"):
        assert shown in result.stdout


def test_a_missed_bound_exits_1_and_is_named(clusters: Clusters) -> None:
    clusters.summary["hits_of_ideal"] = 0.5
    result = call("--case", "even", "--policy", "token-load")
    assert result.exit_code == 1
    assert "missed: even: hits of the ideal 50.0%, at least 90% is asked" in result.stdout


@pytest.mark.parametrize("failure", [CannotStart("it broke"), comparison.LoadFailed("it broke")])
def test_what_cannot_run_exits_2_with_one_line(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def load(server: Server, flags: Sequence[str]) -> dict:
        raise failure

    monkeypatch.setattr(comparison, "_load", load)
    result = call("--case", "even")
    assert result.exit_code == 2
    assert result.stderr == "headrace bench routing: it broke\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_meets_the_clean_up_and_130(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(comparison, "_load", lambda server, flags: os.kill(os.getpid(), number))
    result = call("--case", "even", "--json")
    assert (result.exit_code, result.stdout, clusters.num_up) == (130, "", 0)
    assert result.stderr == "headrace bench routing: stopped\n"


def test_a_trace_is_a_case_of_its_own(clusters: Clusters, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE_LINE)
    assert call("--trace", str(path), "--policy", "affinity").exit_code == 0
    assert [f"--trace={path}" in load for load in clusters.loads] == [False, False, True]
    result = call("--case", "trace")
    assert (result.exit_code, "--case trace needs --trace FILE" in result.stderr) == (2, True)


def shown_commands(*arguments: str) -> list[list[str]]:
    result = call("--show-commands", "--policy", "token-load", *arguments)
    assert result.exit_code == 0, result.output
    return [shlex.split(line) for line in result.stdout.splitlines()]


def settings_of(command: Sequence[str]) -> ServeSettings:
    fields = (flag.removeprefix("--").split("=", 1) for flag in command[2:])
    return ServeSettings(**{name.replace("-", "_"): value for name, value in fields})


def options_of(command: Sequence[str]) -> Options:
    return check(load.make_context("load", list(command[2:])))


def test_each_cluster_is_one_that_serve_accepts_and_holds_what_the_case_says(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE_LINE)
    serves = [one for one in shown_commands("--trace", str(path)) if one[1] == "serve"]
    plans = []
    for command in serves:
        settings = settings_of(command)
        plans.append(plan_engine(settings, resolve_model(settings.model)).config)
    even, hot, trace = plans
    assert even == hot
    assert even.num_blocks - 1 == 8 * 74  # 8 × 1182 tokens in blocks of 16
    assert (trace.max_model_len, trace.num_blocks - 1) == (131_072, 4 * 131_072 // 16)


def test_each_load_is_one_that_load_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace" / "demo.key").write_text("hr-key")
    (tmp_path / "trace.jsonl").write_text(TRACE_LINE)
    loads = [one for one in shown_commands("--trace", "trace.jsonl") if one[1] == "load"]
    even, hot, trace = [options_of(command) for command in loads]
    assert even.traffic.schedule is not None
    assert len(even.traffic.schedule.arrivals) == 800
    assert even.traffic.workload.hot_share is None
    assert hot.traffic.workload.hot_share == 0.8
    assert len(trace.traffic.workload.prompt(0).content) == 5


def test_loads_come_in_proportion_to_the_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE_LINE)

    def of(step_ms: str) -> list[str]:
        commands = shown_commands("--trace", str(path), "--step-ms", step_ms)
        return [
            flag
            for command in commands
            for flag in command
            if flag.startswith(("--model", "--rate", "--time-scale"))
        ]

    for step, (even, hot, time_scale) in {"40": (20, 40, 0.25), "100": (8, 16, 0.625)}.items():
        assert of(step) == [
            f"--model=tape:?step_ms={step}",
            f"--rate={even}",
            f"--model=tape:?step_ms={step}",
            f"--rate={hot}",
            f"--model=tape:?step_ms={step}&max_model_len=131072",
            f"--time-scale={time_scale}",
        ]


def test_a_load_is_run_as_a_user_would_and_its_figures_are_read() -> None:
    with fake_api(lambda body: streamed(["a"])) as api:
        server = Server(int(api.url.rpartition(":")[2]), "hr-key")
        assert comparison._load(server, ["--requests=2", "--output-tokens=1"])["requests"] == 2
    assert {headers["authorization"] for _, headers, _ in api.asked} == {"Bearer hr-key"}
    with pytest.raises(comparison.LoadFailed, match="status 2; the lines above say why"):
        comparison._load(server, ["--rate=0"])
