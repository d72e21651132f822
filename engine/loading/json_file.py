"""A model's JSON file, read with a schema."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from engine.loading.errors import ModelError
from engine.loading.model_file import read_file

_T = TypeVar("_T")


def read_json(path: Path, schema: type[_T]) -> _T:
    """Raises ModelError, naming the file and the field, for what is missing or of another shape."""
    raw = read_file(path)
    try:
        return msgspec.json.decode(raw, type=schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: {error}", "give a complete folder of a Llama-family model") from None
