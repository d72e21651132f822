"""`30d`, `24h`, `90m`, `45s`: lengths of time as they are typed; a bare 0 is none at all."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_FORM = re.compile(r"([0-9]{1,9})([smhdw])")


def seconds_of(text: str) -> int:
    """Raises `ValueError`."""
    form = _FORM.fullmatch(text)
    if text == "0":
        return 0
    if form is None:
        raise ValueError(f"{text!r} is no length of time: give 45s, 90m, 24h, 30d or 2w")
    return int(form[1]) * _UNITS[form[2]]


class Duration(click.ParamType[Any]):
    """Seconds, as an int."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else seconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()
