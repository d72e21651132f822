"""`headrace serve --config FILE`: settings as a YAML file of `field: value`, with the fields' own names.

Each value is read as the flag's would be. A relative path, also of a model or a tape, is relative to the
file's folder; a model that is not found there is left as it is written: it may be a short name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from cluster.settings import ServeSettings
from cluster.yaml_file import YamlFile, read_yaml

_TAPE = "tape:"


def read_settings_file(path: Path) -> YamlFile:
    """Its `value` is as flags are: field to text; fields that are null are left out.

    Raises `cluster.yaml_file.YamlFileError` for what is no setting or has no single value.
    """
    file = read_yaml(path)
    said = {} if file.value is None else file.value
    if not isinstance(said, Mapping):
        raise file.fault("expected settings, `name: value`")
    texts = {field: _text(file, field, value) for field, value in said.items() if value is not None}
    return YamlFile(
        file.path, {field: _beside(path.parent, field, text) for field, text in texts.items()}, file.root
    )


def _text(file: YamlFile, field: str, value: Any) -> str:
    known, flag = ServeSettings.model_fields.get(field), f"--{field.replace('_', '-')}"
    if known is None:
        close = field.replace("-", "_")
        hint = f"; write {close}" if close in ServeSettings.model_fields else ""
        raise file.fault(f"there is no such setting ({flag}){hint}", field)
    if isinstance(value, bool):
        if known.annotation is not bool:
            raise file.fault(f"cannot be yes or no ({flag}); quote it if it is text", field)
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise file.fault(f"expected one plain value ({flag})", field)
    return str(value)


def _beside(folder: Path, field: str, text: str) -> str:
    """Absolute, so that it means the same wherever the launcher runs."""
    folder = folder.resolve()
    if field == "model":
        head, rest = (_TAPE, text.removeprefix(_TAPE)) if text.startswith(_TAPE) else ("", text)
        path, query, asked = rest.partition("?") if head else (rest, "", "")
        is_there = bool(path) and (folder / path).exists()
        return f"{head}{folder / path}{query}{asked}" if is_there else text
    annotation = ServeSettings.model_fields[field].annotation
    is_path = Path in (annotation, *get_args(annotation))
    return str(folder / Path(text).expanduser()) if is_path else text
