"""A key file: its key as it is sent, or a complaint that names the option and quotes nothing."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cluster.key_file import is_key, read_key


def test_the_line_s_end_is_not_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "demo.key").write_text("hr-demo_key\n")
    assert read_key(tmp_path / "demo.key") == "hr-demo_key"


@pytest.mark.parametrize("held", [b"", b"\n", "hr-häßlich".encode(), b"hr-two\nkeys", b"hr-a b", b"hr-\x00"])
def test_what_no_header_can_carry_is_no_key(held: bytes, tmp_path: Path) -> None:
    (tmp_path / "demo.key").write_bytes(held)
    with pytest.raises(click.BadParameter, match=r"demo\.key holds no key$") as raised:
        read_key(tmp_path / "demo.key")
    assert raised.value.param_hint == "--key-file"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="cannot be read: No such file or directory"):
        read_key(tmp_path / "none.key")
    (tmp_path / "bytes.key").write_bytes(b"\xff\xfe")
    with pytest.raises(click.BadParameter, match="cannot be read: it is no text"):
        read_key(tmp_path / "bytes.key")


@pytest.mark.parametrize(("text", "is_one"), [("!~", True), ("", False), (" ", False), ("\x7f", False)])
def test_a_key_is_visible_ascii(text: str, is_one: bool) -> None:
    assert is_key(text) is is_one
