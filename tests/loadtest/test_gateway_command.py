"""`headrace bench gateway` as its user meets it: options, table, JSON, exit status."""

from __future__ import annotations

import json
import os
import signal

import pytest
from click.testing import CliRunner, Result

from loadtest.bench_command import bench
from loadtest.bench_setup import CannotBench
from loadtest.gateway_bench import bench as gateway_bench
from loadtest.gateway_bench.answers import BrokenAnswer
from loadtest.gateway_bench.bench import GatewayBench
from loadtest.server_process import CannotStart

FIGURES = {
    "streams": 64,
    "output_tokens": 256,
    "tokens_per_s": 12_345.6,
    "events_per_s": 9_876.5,
    "client_cpu_share": 0.321,
    "requests_per_s": 412.3,
    "event_per_token_tokens_per_s": 7_012.3,
    "event_per_token_share": 0.9987,
    "added_p50_ms": 3.141,
    "added_p99_ms": 9.265,
    "added_itl_p50_ms": 0.358,
    "added_itl_p99_ms": 0.979,
    "uvicorn_tokens_per_s": 45_678.9,
    "per_request_stream_tokens_per_s": 7_654.3,
    "ratio": 0.27,
    "held": True,
}


def call(*arguments: str) -> Result:
    return CliRunner().invoke(bench, ["gateway", *arguments], catch_exceptions=False)


def measured(monkeypatch: pytest.MonkeyPatch, **other: object) -> None:
    monkeypatch.setattr(GatewayBench, "run", lambda bench: {**FIGURES, **other})


def test_it_prints_every_figure_and_the_last_line_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    result = call("--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1]) == FIGURES
    shown = {
        f"{value:,}" for key, value in FIGURES.items() if key not in ("held", "streams", "output_tokens")
    }
    assert shown <= set(result.stdout.split())


def test_a_missed_bound_is_named_and_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, requests_per_s=299.0, held=False)
    result = call()
    assert result.exit_code == 1
    assert result.stderr == "requests_per_s is 299, below 300\n"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BrokenAnswer("an answer was not whole: cut off"), 1),
        (CannotStart("a server did not start: port 1 is taken"), 2),
        (CannotBench("no memory; take less"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_other_end_is_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def fail(bench: GatewayBench) -> None:
        raise error

    monkeypatch.setattr(GatewayBench, "run", fail)
    result = call("--json")
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr == f"headrace bench gateway: {str(error) or 'stopped'}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(GatewayBench, "run", lambda bench: os.kill(os.getpid(), number))
    assert call().exit_code == 130
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    "arguments", [("--streams", "0"), ("--output-tokens", "4097"), ("--answers", "0"), ("--replicas", "0")]
)
def test_a_bad_option_exits_2_and_is_named(arguments: tuple[str, str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


def test_added_latency_is_what_http_takes_more_than_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests: TTFT 7 and 9 ms through HTTP, 5 and 6 ms in the engine; gaps 6 ms against 5."""
    from loadtest.gateway_bench.answers import CheckedAnswer
    from loadtest.gateway_bench.load import LoadResult

    engine = {"ttft_p50_ms": 5.0, "ttft_p99_ms": 6.0, "itl_p50_ms": 5.0, "itl_p99_ms": 5.0}
    monkeypatch.setattr(gateway_bench, "engine_latency", lambda step_ms, **sizes: engine)
    answers = [CheckedAnswer(2, 2, ttft_s, (0.006,)) for ttft_s in (0.007, 0.009)]
    bench = GatewayBench(gateway_bench.GatewayLoad(), tell=lambda line: None)
    assert bench._added(LoadResult(answers, elapsed_s=1.0, client_cpu_s=0.1)) == {
        "added_p50_ms": 2.0,
        "added_p99_ms": 3.0,
        "added_itl_p50_ms": 1.0,
        "added_itl_p99_ms": 1.0,
    }
