"""YAML that people write for us: read strictly, and every complaint is one line that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.yaml_file import MAX_BYTES, YamlFileError, read_yaml


def test_values_are_plain_and_a_fault_is_placed_by_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a:\n  b:\n    - 1\n    - c: x\n")
    file = read_yaml(path)
    assert file.value == {"a": {"b": [1, {"c": "x"}]}}
    assert str(file.fault("bad", "a", "b", 1, "c")) == f"{path}:4: a.b.1.c: bad"
    assert str(file.fault("not there", "a", "none", "deep")) == f"{path}:1: a.none.deep: not there"
    assert str(file.fault("all of it")) == f"{path}:1: all of it"


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.touch()
    file = read_yaml(path)
    assert file.value is None
    assert str(file.fault("bad", "a")) == f"{path}: a: bad"


def test_merged_mappings_are_no_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nmore:\n  <<: *base\n  a: 3\n")
    assert read_yaml(path).value["more"] == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (b"a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"\xff\xfea", "it is no UTF-8 text"),
        (b"a: \x01", "is no YAML"),
        (b"a: [" + b"[" * 5000, "nested too deep"),
        (b"? [a]\n: b", ":1: a key must be text"),
        (b"a: b: c", ":1: mapping values are not allowed here"),
        (b"a: *none", "found undefined alias"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_in_one_line(held: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(held)
    with pytest.raises(YamlFileError) as raised:
        read_yaml(path)
    assert said in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_is_read_up_to_its_limit_and_not_beyond(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: 1\n#".ljust(MAX_BYTES, b"-"))
    assert read_yaml(path).value == {"a": 1}
    with path.open("ab") as file:
        file.write(b"-")
    with pytest.raises(YamlFileError, match=r"a\.yaml is too large: it may have 1048576 bytes$"):
        read_yaml(path)
    with pytest.raises(YamlFileError, match=r"^/dev/zero is too large"):
        read_yaml(Path("/dev/zero"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(YamlFileError, match=r"none\.yaml cannot be read: No such file or directory"):
        read_yaml(tmp_path / "none.yaml")
