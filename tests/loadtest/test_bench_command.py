"""`headrace bench engine` as its user meets it: options, table, JSON, exit status."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner, Result

from engine.loading.errors import ModelError
from engine.tape import TapeExecutor
from loadtest import machine_probe
from loadtest.bench_command import bench
from loadtest.bench_engine import EngineBench
from loadtest.limits import MachineLimits
from tests.builders_model import TINY

SMALL = ["--prompt-tokens", "8", "--output-tokens", "2", "--kv-memory", "16M", "--dtype", "float32"]
KEYS = {
    "output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "kv_waste",
    "limit_share", "overhead_share", "peak_rss_mib", "hit_rate", "preemptions", "requests", "concurrency",
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short tries of each kind: what the machine can do is not the question here."""
    monkeypatch.setattr(machine_probe, "_READ_BYTES", 2**22)
    monkeypatch.setattr(machine_probe, "_PROBE_S", 0.0)


def call(*arguments: str, model: str = "tape:") -> Result:
    return CliRunner().invoke(bench, ["engine", "--model", model, *arguments], catch_exceptions=False)


def test_it_prints_a_table_and_the_last_line_is_json() -> None:
    result = call(*SMALL, "--concurrency", "2", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert set(figures) >= KEYS
    assert (figures["concurrency"], figures["requests"]) == (2, 4)
    assert "tok/s" in result.stdout
    assert all(heading in result.stdout for heading in ("TTFT", "ITL", "waste", "overhead"))
    assert f" {figures['output_tokens_per_s']:.1f} " in result.stdout


def test_no_figure_of_the_table_is_cut_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {
        "concurrency": 1024,
        "output_tokens_per_s": 123456.7,
        "ttft_p50_ms": 98765.4,
        "ttft_p99_ms": 98766.4,
        "itl_p50_ms": None,
        "itl_p99_ms": 9876.5,
        "kv_waste": 0.9876,
        "hit_rate": 0.5,
        "limit_share": 0.4321,
        "overhead_share": 0.0123,
        "peak_rss_mib": 12345.6,
    }
    monkeypatch.setattr(EngineBench, "run", lambda bench, load, on_step: row)
    shown = call(*SMALL).stdout.split()
    cells = [
        "1024",
        "123456.7",
        "98765.4",
        "98766.4",
        "-",
        "9876.5",
        "98.8%",
        "50.0%",
        "43.2%",
        "1.2%",
        "12346",
    ]
    assert shown[-len(cells) :] == cells


def test_without_json_there_is_the_table_only() -> None:
    assert "{" not in call(*SMALL).stdout


def test_each_concurrency_is_a_row_on_an_engine_of_its_own() -> None:
    """The prompts are the same for each, and no row meets the cache that another one filled."""
    result = call(*SMALL, "--concurrency", "1", "--concurrency", "3", "--requests", "5", "--json")
    figures = json.loads(result.stdout.splitlines()[-1])
    rows = figures.pop("rows")
    assert [(row["concurrency"], row["requests"], row["hit_rate"]) for row in rows] == [(1, 5, 0), (3, 5, 0)]
    assert figures == rows[-1]


def test_a_model_is_measured_like_a_tape() -> None:
    result = call(*SMALL, "--concurrency", "2", "--json", model=str(TINY))
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["output_tokens_per_s"] > 0
    assert 0 < figures["overhead_share"] < 1


def test_a_step_time_of_the_tape_is_the_gap_that_is_measured() -> None:
    figures = json.loads(
        call(*SMALL, "--requests", "1", "--json", model="tape:?step_ms=20").stdout.splitlines()[-1]
    )
    assert 20 <= figures["itl_p50_ms"] < 40
    assert figures["overhead_share"] < 0.25


def test_progress_is_told_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is 2 s later."""
    seconds = iter(range(0, 1000, 2))
    monkeypatch.setattr("loadtest.progress.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    result = call(*SMALL, "--concurrency", "2", "--requests", "2")
    assert result.stderr.splitlines() == ["2 at once: 0 of 2 done", "2 at once: 2 of 2 done"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "1025"], "--concurrency"),
        (["--prompt-tokens", "0"], "--prompt-tokens"),
        (["--output-tokens", "0"], "--output-tokens"),
        (["--requests", "0"], "--requests"),
        (["--shared-prefix-tokens", "8"], "--shared-prefix-tokens: must be below --prompt-tokens"),
        (["--dtype", "float16"], "--dtype"),
        (["--long-prompt", "0"], "--long-prompt"),
        (["--long-prompt", "99", "--prompt-tokens", "129"], "--prompt-tokens: must be at most 128"),
        (["--long-prompt", "99", "--shared-prefix-tokens", "4"], "--long-prompt: goes without"),
    ],
)
def test_a_bad_option_exits_2_and_is_named(arguments: list[str], named: str) -> None:
    result = call(*SMALL, *arguments)
    assert result.exit_code == 2
    assert named in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "model", "line"),
    [
        ([], "nowhere.gguf", "--model nowhere.gguf: model 'nowhere.gguf' was not found; give a GGUF file"),
        (["--kv-memory", "lots"], "tape:", "--kv-memory: "),
        (["--kv-memory", "1M"], "tape:", "2 are needed; give at least --kv-memory"),
        (["--prompt-tokens", "8191"], "tape:", "prompt and output exceed the context of 336 tokens"),
        (["--max-num-batched-tokens", "70000"], "tape:", "--max-num-batched-tokens: "),
        (["--long-prompt", "340"], "tape:", "prompt and output exceed the context of"),
        (["--deterministic", "--dtype", "bfloat16"], "tape:", "--deterministic computes in float32"),
    ],
)
def test_what_cannot_run_exits_2_with_one_line(arguments: list[str], model: str, line: str) -> None:
    result = call(*SMALL, *arguments, model=model)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("headrace bench engine: ")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_too_little_memory_is_known_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
    result = call(*SMALL, model=str(TINY))
    assert result.exit_code == 2
    assert "of memory and" in result.stderr


def test_more_at_once_than_the_budget_raises_the_budget() -> None:
    assert call(*SMALL, "--concurrency", "300", "--requests", "1").exit_code == 0


def test_weights_that_turn_out_wrong_while_loading_exit_2_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ModelError("tensor lm_head holds no numbers", "get the file again")

    monkeypatch.setattr("loadtest.bench_setup.build_executor", fail)
    result = call(*SMALL)
    assert result.exit_code == 2
    assert result.stderr == ("headrace bench engine: tensor lm_head holds no numbers: get the file again\n")


def test_weights_that_cannot_be_read_exit_2_with_one_line(tmp_path: Path) -> None:
    for file in TINY.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    result = call(*SMALL, model=str(tmp_path))
    assert result.exit_code == 2
    assert "model.safetensors" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_engine_that_fails_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TapeExecutor, plan: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(TapeExecutor, "submit", fail)
    result = call(*SMALL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        "headrace bench engine: a request ended with engine_error; the lines above say why"
    )


def test_with_a_shared_prefix_the_load_also_runs_without_the_cache() -> None:
    """The second of two finds the whole blocks of the prefix; without the cache none does."""
    result = call(
        *SMALL, "--prompt-tokens", "40", "--shared-prefix-tokens", "32", "--concurrency", "1", "--json"
    )
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["hit_rate"] == 0.4  # 32 of 80
    assert figures["cache_gain"] == pytest.approx(
        figures["uncached_ttft_p50_ms"] / figures["ttft_p50_ms"], abs=0.01
    )
    assert f"× {figures['cache_gain']:.2f}" in result.stdout


def test_without_a_shared_prefix_nothing_is_said_of_the_cache() -> None:
    figures = json.loads(call(*SMALL, "--json").stdout.splitlines()[-1])
    assert not {"cache_gain", "uncached_ttft_p50_ms"} & figures.keys()


LONG = [*SMALL[2:], "--prompt-tokens", "8", "--long-prompt", "3000", "--kv-memory", "256M", "--json"]


def test_beside_a_long_prompt_short_ones_are_counted_in_steps() -> None:
    result = call(*LONG)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["long_prompt_tokens"] == 3000
    assert 1 <= figures["short_ttft_steps_p99"] <= 2
    assert figures["short_ttft_p99_ms"] > 0
    assert "beside a prompt of 3000 tokens" in result.stdout


def test_a_short_one_that_waits_longer_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.loads(call(*LONG).stdout.splitlines()[-1])
    monkeypatch.setattr(
        EngineBench, "run_beside_long_prompts", lambda *arguments: {**row, "short_ttft_steps_p99": 3}
    )
    assert call(*LONG).exit_code == 1


def test_a_model_s_steps_are_held_against_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is a million times slower than any would have needed longer than it took."""
    limits = MachineLimits(bytes_per_s=1e3, flops_per_s=1e18)
    real = json.loads(call(*SMALL, "--json", model=str(TINY)).stdout.splitlines()[-1])
    monkeypatch.setattr(machine_probe, "probe_machine", lambda dtype, device: limits)
    slow = json.loads(call(*SMALL, "--json", model=str(TINY)).stdout.splitlines()[-1])
    assert slow["limit_share"] > 1
    assert 0 < real["limit_share"] <= 1.05


def test_a_tape_has_no_limits_and_says_so() -> None:
    figures = json.loads(call(*SMALL, "--json").stdout.splitlines()[-1])
    assert figures["limit_share"] is None
    assert figures["limit_share_reason"]
