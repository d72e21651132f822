"""`requests_per_min=100` and its like: fields of terms as they are typed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_type_hints

import click
import msgspec

from cluster.admin_cli.directory import as_json
from cluster.admin_cli.misfits import misfit

DEFAULT: Final = msgspec.UNSET
"""What `field=default` means: as if it had never been set."""

_INTEGER = re.compile(r"-?[0-9]+(_[0-9]+)*")
_MAX_DIGITS = 20


def assignments(pairs: Sequence[str]) -> dict[str, str]:
    """`field=value` pairs. Raises click's usage error for one that is none, or comes twice."""
    given: dict[str, str] = {}
    for pair in pairs:
        field, equals, value = pair.partition("=")
        if not equals or not field:
            raise click.BadParameter(f"{pair!r} is not field=value")
        if field in given:
            raise click.BadParameter(f"{field} is given twice")
        given[field] = value
    return given


def read_terms(given: Mapping[str, str], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """`given` as values of `struct`'s fields; `none` is None, `default` is `DEFAULT`.

    Raises click's usage error, which names the field.
    """
    types = get_type_hints(struct, include_extras=True)
    for field in given:
        if field not in types:
            raise click.BadParameter(
                f"there is no field {field}; there are {', '.join(struct.__struct_fields__)}"
            )
    return {field: _value(field, text, types[field]) for field, text in given.items()}


def merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`before` with `changes`; what is `DEFAULT` there is left out."""
    return {field: value for field, value in {**before, **changes}.items() if value is not DEFAULT}


def _value(field: str, text: str, kind: Any) -> Any:
    if text == "default":
        return DEFAULT
    value: Any = text
    if text == "none":
        value = None
    elif field == "models":
        value = [name for name in text.split(",") if name]
    elif _INTEGER.fullmatch(text) and len(text) <= _MAX_DIGITS:
        value = int(text)
    try:
        return as_json(msgspec.convert(value, kind))
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{field}={text}: {misfit(error, kind)}") from None
