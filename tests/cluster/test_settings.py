"""Settings: flags, environment, units, bounds."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from cluster.serve_command import serve
from cluster.settings import FAULTS_ALLOWED, TEST_FIELDS, ServeSettings, root_secret


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What should be refused and is not ends the command with 0, and starts no cluster."""
    monkeypatch.setattr("cluster.serve_command.supervise", lambda command, environment: 0)


@pytest.mark.parametrize(
    ("given", "bytes_"), [("512M", 512 * 2**20), ("1g", 2**30), ("2048k", 2**21), ("4194304", 2**22)]
)
def test_memory_takes_units(given: str, bytes_: int) -> None:
    assert ServeSettings(kv_memory=given).kv_memory == bytes_  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["1T", "-1G", "1.5G", "G", "", "lots", "1", "٥M", "²M", "9" * 5000])
def test_nonsense_memory_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="kv_memory"):
        ServeSettings(kv_memory=given)  # type: ignore[arg-type]


def test_every_option_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MAX_NUM_SEQS", "7")
    monkeypatch.setenv("HEADRACE_PORT", "1234")
    assert (ServeSettings().max_num_seqs, ServeSettings().port) == (7, 1234)
    assert ServeSettings(port=99).port == 99


def test_every_field_has_a_flag_and_a_help_text() -> None:
    text = CliRunner().invoke(serve, ["--help"]).output
    for name, field in ServeSettings.model_fields.items():
        assert (f"--{name.replace('_', '-')}" in text) != (name in TEST_FIELDS)
        assert field.description


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "0"], "--port"),
        (["--port", "65536"], "--port"),
        (["--replicas", "0"], "--replicas"),
        (["--dtype", "float16"], "--dtype"),
        (["--device", "tpu"], "--device"),
        (["--max-model-len", "1"], "--max-model-len"),
        (["--kv-memory", "1"], "--kv-memory"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "max_num_batched_tokens"),
        (["--log-level", "loud"], "--log-level"),
        (["--kv-cache-dtype", "float16"], "--kv-cache-dtype"),
        (["--deterministic", "--dtype", "bfloat16"], "--dtype float32 or auto"),
        (["--deterministic", "--dtype", "bfloat16"], "--deterministic"),
        (["--deterministic", "--kv-cache-dtype", "bfloat16"], "--kv-cache-dtype float32 or auto"),
        (["--deterministic", "--kv-cache-dtype", "bfloat16"], "--deterministic"),
        (["--kv-memory", "foo"], "--kv-memory: give bytes, or 512M, 1G (given: 'foo')"),
        (["--ray-address", "ray://head:10001"], "--ray-address: give auto, or host:port"),
        (["--ray-address", "head"], "--ray-address: give auto, or host:port"),
        (["--fault", "raise@3"], f"--fault: is for tests only: it needs {FAULTS_ALLOWED}=1"),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_a_bad_flag_is_named_and_ends_with_2(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(serve, arguments)
    assert result.exit_code == 2
    assert named in result.output


@pytest.mark.usefixtures("nothing_starts")
def test_a_bad_variable_is_named_and_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "abc")
    result = CliRunner().invoke(serve, ["--replicas", "0"])
    assert result.exit_code == 2
    assert "headrace serve: --replicas: " in result.output
    assert "headrace serve: HEADRACE_PORT: " in result.output
    assert "--port" not in result.output


def test_a_fault_is_taken_where_they_are_allowed_and_must_be_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULTS_ALLOWED, "1")
    assert ServeSettings(fault="raise@3+,nan@2:0").fault == "raise@3+,nan@2:0"
    with pytest.raises(ValidationError, match="not 'explode@3'"):
        ServeSettings(fault="raise@1,explode@3")


def test_the_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    first = root_secret(tmp_path)
    assert root_secret(tmp_path) == first
    assert len(first) == 64
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_an_empty_secret_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    with pytest.raises(ValueError, match=r"secret is empty"):
        root_secret(tmp_path)


def test_a_secret_that_somebody_else_made_first_is_taken(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: root_secret(tmp_path), range(8)))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_the_environment_s_secret_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SECRET", "from the environment")
    assert root_secret(tmp_path) == b"from the environment"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["auto", "10.0.0.1:6379", "head.example:6379", "[::1]:6379"])
def test_a_ray_is_named_by_its_address(given: str) -> None:
    assert ServeSettings(ray_address=given).ray_address == given
