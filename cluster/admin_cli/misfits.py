"""Why a value does not fit its field: msgspec's own words, and what is allowed where these don't say it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

_CHOICE = re.compile(r"Invalid enum value '?(.*?)'?(?: - at `.*`)?")
_ID = "an id has 1 to 63 characters of a-z, 0-9, _ and -, the first a letter or digit"


def misfit(error: msgspec.ValidationError, kind: Any) -> str:
    """One line. `kind` is the type that the value should have had."""
    said = str(error)
    if choice := _CHOICE.fullmatch(said):
        return f"there is no {choice[1]}; there are {', '.join(_choices(kind))}"
    return _ID if "matching regex" in said else said


def _choices(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for inner in get_args(kind):
            yield from _choices(inner)
