"""`headrace load` as its user meets it: options, output, exit status; and the key in none of them."""

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadtest.arrivals import poisson_arrivals
from loadtest.load_command import load
from tests.loadtest.fake_api import Reply, fake_api, streamed

KEY = "hr-0123456789-secret"


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(load, arguments, catch_exceptions=False)


def test_a_clean_run_prints_a_table_and_one_json_line() -> None:
    with fake_api(lambda body: streamed(["a"] * body["max_tokens"], cached_tokens=1)) as api:
        result = call(
            api.url,
            "--requests",
            "6",
            "--concurrency",
            "2",
            "--output-tokens",
            "3",
            "--prompt-tokens",
            "4",
            "--json",
        )
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["requests"], figures["errors"], figures["rejected"]) == (6, 0, 0)
    assert (figures["output_tokens"], figures["concurrency"], figures["hit_rate"]) == (18, 2, 0.2)
    assert figures["slo"] == {"ttft_ms": 1000, "tpot_ms": 100}
    assert list(figures["per_tenant"]) == ["default"]
    assert all(figures[f"{name}_p99_ms"] is not None for name in ("ttft", "itl", "tpot", "e2e"))
    assert "6 requests, 2 at once" in result.stdout
    assert "TTFT" in result.stdout
    assert [len(body["prompt"]) for body in api.bodies] == [4] * 6


def test_the_keys_of_the_json_are_those_that_tools_read() -> None:
    with fake_api(lambda body: streamed(["a"])) as api:
        result = call(api.url, "--requests", "1", "--output-tokens", "1", "--json")
    latencies = {f"{name}_p{p}_ms" for name in ("ttft", "itl", "tpot", "e2e") for p in (50, 90, 99)}
    assert set(json.loads(result.stdout.splitlines()[-1])) >= latencies | {
        "offered_rps", "achieved_rps", "rejected", "goodput_rps", "slo", "per_tenant", "hit_rate",
        "requests", "errors", "statuses", "output_tokens_per_s", "concurrency",
    }  # fmt: skip


def test_the_same_seed_asks_the_same_and_another_does_not() -> None:
    asked = []
    for seed in ("1", "1", "2"):
        with fake_api(lambda body: streamed(["a"])) as api:
            call(api.url, "--requests", "3", "--output-tokens", "1", "--concurrency", "1", "--seed", seed)
            asked.append(api.bodies)
    assert asked[0] == asked[1] != asked[2]


def test_any_request_that_was_not_answered_in_full_exits_1_and_is_shown() -> None:
    replies = iter(
        [streamed(["a"]), Reply((b"{}",), 429), Reply((b'{"error":{"message":"no [luck]"}}',), 500)]
    )
    with fake_api(lambda body: next(replies)) as api:
        result = call(api.url, "--requests", "3", "--concurrency", "1", "--output-tokens", "1", "--json")
    assert result.exit_code == 1
    assert "not answered in full: 1 × 429, 1 × 500 (no [luck])" in result.stdout
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["requests"], figures["rejected"], figures["errors"]) == (3, 1, 1)


def test_nobody_there_exits_2_with_one_line() -> None:
    with fake_api(lambda body: Reply(())) as api:
        url = api.url
    for model in ([], ["--model", "tiny"]):
        result = call(url, *model)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("headrace load: nothing answers at 127.0.0.1:")
        assert result.stderr.count("\n") == 1


def test_a_server_without_models_needs_one_named() -> None:
    with fake_api(lambda body: streamed(["a"]), models=Reply((b'{"data":[]}',))) as api:
        assert "the server names no model: give one with --model" in call(api.url).stderr
        assert call(api.url, "--model", "mine", "--requests", "1", "--output-tokens", "1").exit_code == 0
    assert api.bodies[0]["model"] == "mine"


@pytest.mark.parametrize("by", ["option", "file", "environment"])
def test_the_key_is_sent_and_never_shown(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "demo.key"
    file.write_text(f"{KEY}\n")
    monkeypatch.setenv("HEADRACE_API_KEY", KEY if by == "environment" else "")
    given = {"option": ["--key", KEY], "file": ["--key-file", str(file)], "environment": []}[by]
    with fake_api(lambda body: Reply((b"{}",), 401)) as api:
        result = call(api.url, "--requests", "2", "--json", *given)
    assert {headers["authorization"] for _, headers, _ in api.asked} == {f"Bearer {KEY}"}
    assert KEY not in result.output
    assert list(json.loads(result.stdout.splitlines()[-1])["per_tenant"]) == [
        "demo" if by == "file" else "default"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftp://x"], "URL: must be like http://127.0.0.1:8000"),
        (["localhost:8000"], "URL: must be like"),
        (["http://x:99999"], "URL: must be like"),
        (["http://x", "--requests", "1", "--duration", "1"], "--requests and --duration exclude each other"),
        (["http://x", "--concurrency", "0"], "--concurrency"),
        (["http://x", "--duration", "0"], "--duration"),
        (["http://x", "--slo", "ttft=1"], "--slo: 'ttft=1' does not begin with one of"),
        (["http://x", "--no-stream", "--slo", "ttft_ms=1"], "without streaming only e2e_ms is known"),
        (["http://x", "--key-file", "/nowhere/x.key"], "/nowhere/x.key cannot be read: No such file"),
        (["http://x", "--key", "hr-häßlich-secret"], "the key is empty or holds characters that no key has"),
        (["http://x", "--key", "hr-two\nlines-secret"], "the key is empty or holds characters"),
        (["http://x", "--vocab-size", "100"], "--vocab-size"),
        (["http://x", "--rate", "0"], "--rate"),
        (["http://x", "--prefixes", "3"], "--prefixes has no meaning with --workload random"),
        (["http://x", "--hot-share", "0.8"], "--hot-share has no meaning with --workload random"),
        (["http://x", "--time-scale", "2"], "--time-scale has no meaning with --workload random"),
        (
            ["http://x", "--workload", "shared-prefix", "--prompt-tokens", "9"],
            "--prompt-tokens has no meaning with --workload shared-prefix",
        ),
        (["http://x", "--workload", "shared-prefix", "--chat"], "it excludes --chat"),
        (
            ["http://x", "--workload", "shared-prefix", "--prefixes", "1", "--hot-share", "0.5"],
            "--hot-share needs at least 2 --prefixes",
        ),
        (["http://x", "--trace", "x", "--rate", "2"], "--rate has no meaning with --trace"),
        (["http://x", "--trace", "x", "--duration", "2"], "--duration has no meaning with --trace"),
        (["http://x", "--trace", "x", "--workload", "random"], "--workload has no meaning with --trace"),
        (["http://x", "--trace", "x", "--chat"], "--trace sends token ids: it excludes --chat"),
        (["http://x", "--trace", "/nowhere/x"], "/nowhere/x cannot be read: No such file"),
    ],
)
def test_a_bad_command_line_exits_2_and_names_the_option(arguments: list[str], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "secret" not in result.output


def test_an_interrupt_prints_what_there_is() -> None:
    def answer(body: dict) -> Reply:
        if len(api.bodies) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            return Reply((), hangs=True)
        return streamed(["a"])

    with fake_api(answer) as api:
        result = call(api.url, "--duration", "60", "--concurrency", "1", "--output-tokens", "1", "--json")
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["requests"], figures["unfinished"], figures["interrupted"]) == (2, 1, True)
    assert "(interrupted)" in result.stdout
    assert "1 × unfinished" in result.stdout
    assert result.exit_code == 0


def test_at_a_rate_requests_are_due_at_seeded_times_and_the_table_says_how_late_they_were() -> None:
    with fake_api(lambda body: streamed(["a"] * body["max_tokens"])._replace(replica="r1")) as api:
        result = call(api.url, "--rate", "500", "--requests", "20", "--output-tokens", "2", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    schedule = poisson_arrivals(500, 0, num_requests=20)
    assert figures["offered_rps"] == pytest.approx(20 / schedule[-1], abs=0.001)
    assert (figures["loop"], figures["requests"], figures["concurrency"]) == ("open", 20, 1000)
    assert figures["replicas"]["r1"]["requests"] == 20
    assert 0 <= figures["send_lag_p99_ms"] <= figures["send_lag_max_ms"]
    assert "20 requests, at most 1000 at once" in result.stdout
    assert "sent late by" in result.stdout


def test_shared_prefixes_are_asked_for_and_held_against_the_ideal() -> None:
    with fake_api(lambda body: streamed(["a"], prompt_tokens=40, cached_tokens=16)) as api:
        result = call(
            api.url, "--workload", "shared-prefix", "--prefixes", "1", "--prefix-tokens", "32",
            "--suffix-tokens", "8", "--requests", "4", "--output-tokens", "1", "--json",
        )  # fmt: skip
    assert len({tuple(body["prompt"][:32]) for body in api.bodies}) == 1
    assert len({tuple(body["prompt"]) for body in api.bodies}) == 4
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["hit_rate"], figures["ideal_hit_rate"]) == (0.4, 0.6)  # 3 × 32 of 4 × 40
    assert figures["hits_of_ideal"] == 0.6667
    assert "prompt tokens from cache 40.0%, 66.7% of the ideal 60.0%" in result.stdout


def test_a_trace_is_replayed_row_by_row(tmp_path: Path) -> None:
    rows = [(0, 600, 3, [0, 1]), (0, 512, 1, [0]), (3000, 1000, 2, [0, 1])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    with fake_api(lambda body: streamed(["a"] * body["max_tokens"])) as api:
        result = call(api.url, "--trace", str(path), "--time-scale", "0.001", "--json")
        assert result.exit_code == 0, result.output
        asked = sorted((len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) for body in api.bodies)
        assert asked == [(512, 1, True), (600, 3, True), (1000, 2, True)]
        assert len({tuple(body["prompt"][:512]) for body in api.bodies}) == 1
        assert json.loads(result.stdout.splitlines()[-1])["ideal_hit_rate"] == 0.5152  # 496 + 592 of 2112

        result = call(
            api.url, "--trace", str(path), "--time-scale", "0.001", "--requests", "2", "--output-tokens", "2"
        )
        assert [body["max_tokens"] for body in api.bodies[3:]] == [2, 1]
        result = call(api.url, "--trace", str(path), "--requests", "4")
    assert result.exit_code == 2
    assert "holds 3 rows, fewer than --requests 4" in " ".join(result.stderr.split())


def test_a_trace_that_is_none_exits_2_and_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0}\n')
    result = call("http://x", "--trace", str(path))
    assert result.exit_code == 2
    assert "--trace" in result.stderr
    assert "line 1: Object missing required field `input_length`" in " ".join(result.stderr.split())


def test_a_text_prompt_goes_out_as_one_user_message() -> None:
    with fake_api(lambda body: streamed(["a"])) as api:
        assert (
            call(
                api.url, "--chat", "--requests", "1", "--prompt-tokens", "3", "--output-tokens", "1"
            ).exit_code
            == 0
        )
    (message,) = api.bodies[0]["messages"]
    assert (message["role"], len(message["content"].split())) == ("user", 3)
