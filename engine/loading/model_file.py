"""A small file of a model, read whole. Nothing but a regular file is opened: a pipe would wait for ever."""

from __future__ import annotations

import os
from pathlib import Path

from engine.loading.errors import ModelError

_MAX_BYTES = 2**28
"""Several times the largest tokenizer."""
_REMEDY = "give a complete folder of a Llama-family model"


def is_stated(path: Path) -> bool:
    """Whether the folder names the file. A link that leads nowhere does: reading it tells what is missing."""
    return os.path.lexists(path)


def check_regular(path: Path) -> None:
    """Raises ModelError unless the path leads to a regular file."""
    if not path.exists():
        raise ModelError(f"{path} is missing", _REMEDY)
    if not path.is_file():
        raise ModelError(f"{path} is not a regular file", _REMEDY)


def read_file(path: Path) -> bytes:
    """Raises ModelError, naming the file, if it is missing, no regular file, too large or unreadable."""
    try:
        check_regular(path)
        num_bytes = path.stat().st_size
        if num_bytes > _MAX_BYTES:
            raise ModelError(f"{path} has {num_bytes} bytes, over {_MAX_BYTES}", _REMEDY)
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror})", "check its permissions") from None


def read_text(path: Path) -> str:
    """As `read_file`, and for what is not UTF-8."""
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})", _REMEDY) from None
