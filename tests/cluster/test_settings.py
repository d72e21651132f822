"""Settings: flags, environment, file, units, bounds."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from cluster.serve_command import SETTINGS_VARIABLE, serve
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
        (["--min-replicas", "1"], "--min-replicas needs --max-replicas"),
        (["--min-replicas", "3", "--max-replicas", "2"], "--min-replicas 3 is more than --max-replicas 2"),
        (["--replicas", "3", "--max-replicas", "2"], "--replicas 3 is more than --max-replicas 2"),
        (["--max-replicas", "0"], "--max-replicas"),
        (["--headroom", "0.9"], "--headroom"),
        (["--scale-down-delay-s", "0"], "--scale-down-delay-s"),
        (["--dtype", "float16"], "--dtype"),
        (["--device", "tpu"], "--device"),
        (["--max-model-len", "1"], "--max-model-len"),
        (["--kv-memory", "1"], "--kv-memory"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "max_num_batched_tokens"),
        (["--log-level", "loud"], "--log-level"),
        (["--warm-prefixes", "65"], "--warm-prefixes"),
        (["--kv-cache-dtype", "float16"], "--kv-cache-dtype"),
        (["--deterministic", "--dtype", "bfloat16"], "--dtype float32 or auto"),
        (["--deterministic", "--dtype", "bfloat16"], "--deterministic"),
        (["--deterministic", "--kv-cache-dtype", "bfloat16"], "--kv-cache-dtype float32 or auto"),
        (["--deterministic", "--kv-cache-dtype", "bfloat16"], "--deterministic"),
        (["--attention-backend", "flash"], "--attention-backend"),
        (["--attention-backend", "triton"], "--attention-backend triton goes with --device cuda"),
        (
            ["--attention-backend", "cpu", "--device", "cuda"],
            "--attention-backend cpu goes with --device cpu",
        ),
        (["--attention-backend", "cpu", "--deterministic"], "give --attention-backend auto"),
        (["--kv-memory", "foo"], "--kv-memory: give bytes, or 512M, 1G (given: 'foo')"),
        (["--ray-address", "ray://head:10001"], "--ray-address: give auto, or host:port"),
        (["--ray-address", "head"], "--ray-address: give auto, or host:port"),
        (["--fault", "raise@3"], f"--fault: is for tests only: it needs {FAULTS_ALLOWED}=1"),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_a_bad_flag_is_named_and_ends_with_2(
    arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
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


@pytest.mark.parametrize(
    ("given", "fewest", "first", "most"),
    [
        ({"replicas": 3}, 3, 3, 3),
        ({"max_replicas": 4}, 1, 1, 4),
        ({"max_replicas": 4, "replicas": 2}, 1, 2, 4),
        ({"max_replicas": 4, "min_replicas": 3}, 3, 3, 4),
        ({"max_replicas": 4, "min_replicas": 0}, 0, 1, 4),
    ],
)
def test_replicas_are_a_number_or_a_range(given: dict[str, int], fewest: int, first: int, most: int) -> None:
    settings = ServeSettings.model_validate(given)
    assert (settings.fewest_replicas, settings.first_replicas, settings.most_replicas) == (
        fewest,
        first,
        most,
    )


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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServeSettings]:
    """The settings that `headrace serve` would have started a cluster with."""
    seen: list[ServeSettings] = []

    def supervise(command: list[str], environment: dict[str, str]) -> int:
        seen.append(ServeSettings.model_validate_json(environment[SETTINGS_VARIABLE]))
        return 0

    monkeypatch.setattr("cluster.serve_command.supervise", supervise)
    return seen


def config(folder: Path, text: str) -> str:
    path = folder / "serve.yaml"
    path.write_text(text)
    return str(path)


def test_the_command_line_goes_before_the_environment_that_before_the_file_that_before_the_default(
    started: list[ServeSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path, "replicas: 2\ngateways: 2\nport: 2222\nkv_memory: 512M\ndeterministic: yes\n")
    monkeypatch.setenv("HEADRACE_GATEWAYS", "3")
    monkeypatch.setenv("HEADRACE_PORT", "3333")
    assert CliRunner().invoke(serve, ["--config", path, "--port", "4444"]).exit_code == 0
    (settings,) = started
    assert (settings.port, settings.gateways, settings.replicas) == (4444, 3, 2)
    assert (settings.kv_memory, settings.deterministic) == (512 * 2**20, True)
    assert settings.max_num_seqs == ServeSettings().max_num_seqs


def test_the_file_can_be_named_by_the_environment(
    started: list[ServeSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CONFIG", config(tmp_path, "replicas: 2"))
    assert CliRunner().invoke(serve, []).exit_code == 0
    assert started[0].replicas == 2


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "max_model_len: null\n"])
def test_a_file_that_says_nothing_leaves_the_defaults(
    started: list[ServeSettings], tmp_path: Path, text: str
) -> None:
    assert CliRunner().invoke(serve, ["--config", config(tmp_path, text)]).exit_code == 0
    assert started == [ServeSettings()]


def test_every_setting_can_stand_in_the_file(started: list[ServeSettings], tmp_path: Path) -> None:
    plain = ServeSettings().model_dump(mode="json", exclude_none=True) | {"state_dir": str(tmp_path)}
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in plain.items())
    assert CliRunner().invoke(serve, ["--config", config(tmp_path, text)]).exit_code == 0
    assert started == [ServeSettings(state_dir=tmp_path)]


def test_relative_paths_of_the_file_are_relative_to_its_folder(
    started: list[ServeSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "m.gguf").touch()
    path = config(folder, "model: m.gguf\nstate_dir: ../state\ngolden: golden.jsonl\n")
    monkeypatch.chdir(tmp_path)
    for written in (path, "conf/serve.yaml"):
        assert CliRunner().invoke(serve, ["--config", written]).exit_code == 0
        settings = started.pop()
        assert settings.model == str(folder / "m.gguf")
        assert settings.state_dir.resolve() == tmp_path / "state"
        assert settings.golden == folder / "golden.jsonl"


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        ("smollm2", "smollm2"),
        ("tape:", "tape:"),
        ("tape:?step_ms=5", "tape:?step_ms=5"),
        ("tape:t.jsonl?step_ms=5", "tape:{folder}/t.jsonl?step_ms=5"),
        ("tape:none.jsonl", "tape:none.jsonl"),
        ("/models/x.gguf", "/models/x.gguf"),
        ("model", "{folder}/model"),
    ],
)
def test_a_model_of_the_file_is_what_stands_beside_it_or_as_written(
    started: list[ServeSettings], tmp_path: Path, model: str, taken: str
) -> None:
    (tmp_path / "t.jsonl").touch()
    (tmp_path / "model").mkdir()
    assert CliRunner().invoke(serve, ["--config", config(tmp_path, f"model: '{model}'")]).exit_code == 0
    assert started[0].model == taken.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port: 1\nreplicsa: 2\n", ":2: replicsa: there is no such setting (--replicsa)"),
        (
            "max-num-seqs: 2\n",
            ":1: max-num-seqs: there is no such setting (--max-num-seqs); write max_num_seqs",
        ),
        (
            "port: 1\n\nreplicas: 0\n",
            ":3: replicas: Input should be greater than or equal to 1 (given: '0') (--replicas)",
        ),
        ("replicas: yes\n", ":1: replicas: cannot be yes or no (--replicas)"),
        ("served_model_name: no\n", ":1: served_model_name: cannot be yes or no (--served-model-name)"),
        ("replicas: [1]\n", ":1: replicas: expected one plain value (--replicas)"),
        ("replicas: 1\nreplicas: 2\n", ":2: replicas is there twice"),
        ("replicas: 1\n---\nport: 5\n", ":2: but found another document"),
        ("- replicas\n", ":1: expected settings, `name: value`"),
        ("kv_memory: lots\n", ":1: kv_memory: give bytes, or 512M, 1G (given: 'lots') (--kv-memory)"),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_a_fault_of_the_file_names_file_line_field_and_flag(text: str, said: str, tmp_path: Path) -> None:
    path = config(tmp_path, text)
    result = CliRunner().invoke(serve, ["--config", path])
    assert result.exit_code == 2
    assert f"{path}{said}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("nothing_starts")
def test_a_bad_value_is_blamed_on_what_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(tmp_path, "port: 0\nreplicas: 0\ngateways: 0\n")
    monkeypatch.setenv("HEADRACE_REPLICAS", "0")
    result = CliRunner().invoke(serve, ["--config", path, "--gateways", "0"])
    blamed = [line.split(": ")[1] for line in result.stderr.splitlines()]
    assert blamed == ["HEADRACE_REPLICAS", "--gateways", f"{path}:1"]


@pytest.mark.usefixtures("nothing_starts")
def test_a_file_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(serve, ["--config", "none.yaml"])
    assert result.exit_code == 2
    assert "headrace serve: --config: none.yaml cannot be read: No such file or directory" in result.stderr


def test_the_example_in_the_repository_is_a_good_one(started: list[ServeSettings]) -> None:
    example = Path(__file__).resolve().parents[2] / "deploy" / "serve.yaml"
    assert CliRunner().invoke(serve, ["--config", str(example)]).exit_code == 0
    assert (started[0].replicas, started[0].model) == (2, "smollm2")
