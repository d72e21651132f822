"""A file of the operator's that holds one JSON object a line, each checked against a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Line = TypeVar("Line", bound=BaseModel)


def read_jsonl(path: Path, model: type[Line]) -> Iterator[tuple[str, Line]]:
    """Each line's place, as errors name it, and what it says; empty lines are left out.

    Raises ValueError: one line that names file, line and field, and quotes nothing.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path} line {number}"
            yield place, _parse(place, line, model)


def _parse(place: str, line: bytes, model: type[Line]) -> Line:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(f"{place}: {_first(error.errors(include_url=False, include_input=False))}") from None


def _first(problems: Sequence[Any]) -> str:
    place = ".".join(str(part) for part in problems[0]["loc"])
    return f"{place}: {problems[0]['msg']}" if place else str(problems[0]["msg"])
