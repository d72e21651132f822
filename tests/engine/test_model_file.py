"""Whatever lies where a model's file should be, loading tells it in one line that names the file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from engine.loading.errors import ModelError
from engine.loading.source import resolve_model
from tests.builders_model import TINY

JSON_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
FILES = [*JSON_FILES, "chat_template.jinja", "model.safetensors", "model.safetensors.index.json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


@pytest.fixture
def impatience() -> Iterator[None]:
    """A read that blocks fails its test instead of hanging it."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError("loading waited for bytes that never come")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def told(folder: Path) -> str:
    """What is said of a folder that is loaded up to its weights."""
    with pytest.raises(ModelError) as caught:
        load(folder)
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 600
    return line


def refusal_if_any(folder: Path) -> str | None:
    try:
        load(folder)
    except ModelError as error:
        return error.message
    return None


def load(folder: Path) -> str | None:
    source = resolve_model(str(folder))
    source.tokenizer()
    return source.chat_template()


def put(folder: Path, file: str, make: Callable[[Path], object]) -> Path:
    """`file` made anew; an index of shards is only read where there is no whole file."""
    if file == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    (folder / file).unlink(missing_ok=True)
    make(folder / file)
    return folder


def bind(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(before)


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, bind, lambda path: path.symlink_to("/dev/zero")],
    ids=["pipe", "directory", "socket", "device"],
)
def test_what_is_no_regular_file_is_never_opened(
    folder: Path, file: str, make: Callable[[Path], object]
) -> None:
    assert f"{file} is not a regular file" in told(put(folder, file, make))


@pytest.mark.parametrize("file", [name for name in FILES if not name.startswith("model")])
def test_a_link_that_leads_nowhere_is_missing_not_passed_over(folder: Path, file: str) -> None:
    assert f"{file} is missing" in told(put(folder, file, lambda path: path.symlink_to("gone")))


@pytest.mark.parametrize("file", [name for name in FILES if name != "model.safetensors"])
def test_a_file_beyond_all_sense_is_not_read(folder: Path, file: str) -> None:
    put(folder, file, Path.touch)
    os.truncate(folder / file, 2**40)
    assert f"{file} has 1099511627776 bytes, over 268435456" in told(folder)


@pytest.mark.parametrize("file", [*JSON_FILES, "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{", b'"', b'{"a":' * 100_000, b"[" * 100_000, b"\xef\xbb\xbf{}", b'{"":1}\0'],
    ids=lambda content: repr(content[:8]),
)
def test_what_is_no_json_of_ours_is_refused_by_file(folder: Path, file: str, content: bytes) -> None:
    assert file in told(put(folder, file, lambda path: path.write_bytes(content)))


def test_a_template_that_is_no_text_is_refused_by_file(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"caf\xe9")
    assert "chat_template.jinja is not UTF-8 (unexpected end of data at byte 3)" in told(folder)


@pytest.mark.parametrize("template", [5, {}, [5], [{"name": "default"}], "\ud800"], ids=repr)
def test_a_template_of_another_shape_is_refused_by_file(folder: Path, template: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert "tokenizer_config.json" in told(folder)


# --- tokenizer.json ----------------------------------------------------------------------------

CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
ABSENT_TOKEN = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    "extra",
    [b"[" * depth + b"]" * depth for depth in (100, 500, *range(900, 1000, 5), 5000)]
    + [b'"\xff"', b'"\\ud800"', b"9" * 5000, b"NaN", b"1e999999"],
    ids=lambda extra: f"{extra[:6]!r} × {len(extra)}",
)
def test_a_field_that_nobody_reads_cannot_break_loading(folder: Path, extra: bytes) -> None:
    whole = (folder / "tokenizer.json").read_bytes().rstrip()
    (folder / "tokenizer.json").write_bytes(whole[:-1] + b',"extra":' + extra + b"}")
    assert "tokenizer.json" in (refusal_if_any(folder) or "tokenizer.json")


@pytest.mark.parametrize(
    "changes",
    [{"normalizer": CHARSMAP}, {"post_processor": ABSENT_TOKEN}, {"pre_tokenizer": {"type": "no such"}}],
    ids=lambda changes: str(*changes),
)
def test_what_the_tokenizers_package_cannot_build_is_refused_even_where_it_panics(
    folder: Path, changes: dict[str, Any]
) -> None:
    edit_tokenizer(folder, changes)
    assert "tokenizer.json cannot be built" in told(folder)


def test_padding_and_truncation_are_not_obeyed_even_to_see_whether_a_bos_is_wanted(folder: Path) -> None:
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    }
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    edit_tokenizer(folder, {"post_processor": template, "padding": padding, "truncation": truncation})
    ids = resolve_model(str(folder)).tokenizer().encode("hello there")
    assert ids == [1, *resolve_model(str(TINY)).tokenizer().encode("hello there")]


def edit_tokenizer(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes))
