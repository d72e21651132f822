"""The project's papers: they speak of it alone, name what it needs, and are true of what is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
DOOR_SIGNS = sorted(REPOSITORY.glob("*/README.md"))
INNER_SIGNS = sorted(REPOSITORY.glob("*/*/README.md"))
MAX_DOOR_SIGN_LINES = 40

# Somebody's own folders, wherever they stand in a line; the pattern does not match itself.
MACHINE_PATH = re.compile(rb"(?<![\w.)/>\]])/(?:home|root|work|Users|mnt|opt)/\w|\.\./[s]hared")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    files = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def rooms_of(text: str) -> list[str]:
    """Folders in the first column of a table."""
    return re.findall(r"(?m)^\| `(\w+)/` \|", text)


def test_no_file_names_a_path_of_somebody_s_machine() -> None:
    files = tracked()
    assert len(files) > 100
    named = {
        str(file.relative_to(REPOSITORY)): found[0]
        for file in files
        if (found := MACHINE_PATH.search(file.read_bytes()))
    }
    assert named == {}


@pytest.mark.parametrize("folder", [b"home", b"root", b"work"])
@pytest.mark.parametrize("line", [b"see /%s/me", b'open("/%s/x")', b"/%s/x", b"path=/%s/x"])
def test_the_pattern_finds_such_paths(folder: bytes, line: bytes) -> None:
    assert MACHINE_PATH.search(line % folder)


def test_the_pattern_lets_relative_paths_and_urls_be() -> None:
    for line in (b"deploy/%s/x", b"http://host/%s/x", b"network/%s"):
        assert not MACHINE_PATH.search(line % b"home")


def test_the_readme_s_dependencies_are_the_direct_ones() -> None:
    table = README.partition("## Dependencies")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([\w-]+)", row)]
    declared = [re.split(r"[^\w-]", line)[0] for line in PROJECT["project"]["dependencies"]]
    assert len(declared) > 10
    assert sorted(named) == sorted(declared)


def test_the_rooms_of_the_readme_are_those_that_are_there() -> None:
    with_sign = {sign.parent.name for sign in DOOR_SIGNS}
    assert {*rooms_of(README), "tests"} == with_sign


def test_every_room_that_is_packaged_has_a_door_sign() -> None:
    packaged = {
        pattern.removesuffix("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert packaged <= {sign.parent.name for sign in DOOR_SIGNS}


@pytest.mark.parametrize("sign", DOOR_SIGNS + INNER_SIGNS, ids=lambda sign: sign.parent.name)
def test_a_door_sign_is_short_and_names_files_that_exist(sign: Path) -> None:
    text = sign.read_text()
    assert len(text.splitlines()) <= MAX_DOOR_SIGN_LINES
    named = re.findall(r"`([\w/]+\.(?:py|md|lua))`", text)
    places = (sign.parent, REPOSITORY)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_imports_contract_covers_every_room() -> None:
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == set(PROJECT["tool"]["mypy"]["packages"])
