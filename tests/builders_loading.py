"""Refusals of models, for tests of loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.loading.source import ModelError, resolve_model


def refusal(spec: Path | str) -> str:
    """The one line that a user is told."""
    with pytest.raises(ModelError) as caught:
        resolve_model(str(spec)).tokenizer()
    line = str(caught.value)
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < 600
    assert caught.value.remedy
    return line


def edit_config(folder: Path, **changes: Any) -> Path:
    """Fields of `config.json` set anew; one that is set to `...` is taken out."""
    path = folder / "config.json"
    stated = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in stated.items() if value is not ...}))
    return folder
