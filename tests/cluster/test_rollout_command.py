"""`headrace rollout` against a server that plays a rollout: what it sends, shows, and how it exits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cluster.rollout import command as rollout_command
from cluster.rollout.command import rollout

KEY = "hr-a-key-of-the-tests"


def shown(state: str, *steps: str, **fields: Any) -> dict[str, Any]:
    told = [{"at": 1_700_000_000.0, "text": text} for text in steps]
    base = {"object": "rollout", "rollout_id": "ro-1", "num_updated": 0, "error": None, "remedy": None}
    return {**base, "state": state, "steps": told, **fields}


def refused(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": None, "code": "x"}}


class Server:
    """Plays (status, body) answers one by one, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, str | None, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                key = self.headers.get("authorization")
                server.asked.append((self.command, self.path, key, json.loads(body) if body else None))
                status, answer = server.answers[0] if len(server.answers) == 1 else server.answers.pop(0)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *arguments: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(rollout_command, "_POLL_S", 0.0)
    server = Server()
    yield server
    server.close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "admin.key"
    path.write_text(f"{KEY}\n")
    return path


def run(server: Server, key_file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(rollout, [*arguments, "--url", server.url, "--key-file", str(key_file)])


def test_a_good_one_is_shown_step_by_step_and_exits_0(server: Server, key_file: Path) -> None:
    done = shown("done", "checked", "starting", num_updated=2)
    server.answers = [
        (202, shown("pending")),
        (200, shown("checking")),
        (200, shown("running", "checked")),
        (200, done),
    ]
    result = run(server, key_file, "--model", "tape:x", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == done
    lines = [line.split("  ")[-1] for line in result.stderr.splitlines()]
    assert lines == ["rollout ro-1", "checked", "starting", "done: 2 replica(s) of the new version serve"]
    assert server.asked[0] == ("POST", "/admin/v1/rollouts", f"Bearer {KEY}", {"model": "tape:x"})
    assert {asked[:3] for asked in server.asked[1:]} == {("GET", "/admin/v1/rollouts/ro-1", f"Bearer {KEY}")}


def test_a_failed_one_says_why_and_exits_1(server: Server, key_file: Path) -> None:
    server.answers = [
        (202, shown("pending")),
        (200, shown("failed", error="[out] of memory", remedy="use less")),
    ]
    result = run(server, key_file, "--revision", "0123")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "failed: [out] of memory\n  remedy: use less\n" in result.stderr


def test_without_waiting_it_exits_once_it_is_asked_for(server: Server, key_file: Path) -> None:
    server.answers = [(202, shown("pending"))]
    result = run(server, key_file, "--revision", "0123", "--no-wait", "--json")
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (0, "pending")
    assert len(server.asked) == 1


def test_a_gateway_that_is_away_for_a_while_does_not_matter(server: Server, key_file: Path) -> None:
    server.answers = [(202, shown("pending")), (503, b"no server"), (200, shown("done"))]
    assert run(server, key_file, "--revision", "0123").exit_code == 0


def test_a_gateway_that_stays_away_is_told(
    server: Server, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_command, "_PATIENCE_S", 0.0)
    server.answers = [(202, shown("pending")), (503, b"no server")]
    result = run(server, key_file, "--revision", "0123")
    assert result.exit_code == 2
    assert "the cluster does not answer any more; the rollout may go on" in result.stderr


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (409, refused("Rollout ro-0 is not over yet."), "Rollout ro-0 is not over yet."),
        (401, refused("This API key is not valid."), "This API key is not valid."),
        (200, b"<html>", "what answers is no headrace cluster (200)"),
        (200, {"steps": 5}, "what answers is no headrace cluster (200)"),
    ],
)
def test_a_refusal_is_told_in_the_server_s_words_and_exits_2(
    server: Server, key_file: Path, status: int, body: Any, said: str
) -> None:
    server.answers = [(status, body)]
    result = run(server, key_file, "--revision", "0123")
    assert result.exit_code == 2
    assert result.stderr == f"headrace rollout: {said}\n"


def test_nobody_there_exits_2_and_never_shows_the_key(key_file: Path) -> None:
    arguments = ["--revision", "0123", "--url", "http://127.0.0.1:1", "--key-file", str(key_file)]
    result = CliRunner().invoke(rollout, arguments)
    assert result.exit_code == 2
    assert result.stderr == "headrace rollout: nothing answers at http://127.0.0.1:1 (ConnectError)\n"


def test_golden_prompts_are_read_here_and_a_path_that_is_here_is_made_whole(
    server: Server, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v2.gguf").touch()
    (tmp_path / "golden.jsonl").write_text('{"prompt": "x", "text": "y"}\n')
    server.answers = [(202, shown("done"))]
    run(server, key_file, "--model", "v2.gguf", "--golden", "golden.jsonl")
    sent = server.asked[0][3]
    assert sent == {"model": str(tmp_path / "v2.gguf"), "golden": [{"prompt": "x", "text": "y"}]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --model, --revision or both"),
        (["--model", "m", "--golden", "none.jsonl"], "--golden: none.jsonl cannot be read: No such file"),
        (["--model", "m", "--key-file", "none.key"], "--key-file: none.key cannot be read: No such file"),
    ],
)
def test_a_wrong_command_line_names_the_option_and_exits_2(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(rollout, arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_file_that_holds_no_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_text("two words")
    result = CliRunner().invoke(rollout, ["--model", "m", "--key-file", str(path)])
    assert result.exit_code == 2
    assert "holds no key" in result.stderr
    assert "two words" not in result.output
