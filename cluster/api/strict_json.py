"""JSON from outside, read strictly: one meaning or an error, and nothing that breaks later code.

Refused, beyond what is no JSON at all: a byte order mark, bytes that are no UTF-8, duplicate keys,
numbers that are no finite numbers, surrogates without a partner, deep nesting, a multitude of lists,
objects and floats, integers of thousands of digits. Time is linear in the body.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from typing import Any

from cluster.api.errors import ApiError, bad_request

MAX_DEPTH = 64
MAX_PARTS = 2**16
"""Lists, objects and floats in one body: they cost a hundred times their bytes in time and memory."""
_MAX_NAME_CHARS = 64

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises `ApiError` 400 `invalid_json`; its message quotes no values."""
    if body.startswith(codecs.BOM_UTF8):
        raise _invalid("it begins with a byte order mark")
    try:
        value = _Reader().decode(body.decode())
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # an integer beyond Python's limit of digits
        raise _invalid("an integer has too many digits") from None
    if not isinstance(value, dict):
        raise _invalid("it must be an object")
    _check_nesting(body, value)
    _check_surrogates(body, value)
    return value


def _invalid(reason: str) -> ApiError:
    return bad_request(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _too_deep() -> ApiError:
    return _invalid(f"it is nested deeper than {MAX_DEPTH} levels")


def _too_many() -> ApiError:
    return _invalid(f"it holds more than {MAX_PARTS} lists, objects or floats")


class _Reader:
    """One reading of one body; it counts what it makes."""

    def __init__(self) -> None:
        self._num_parts = 0
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._unique, parse_float=self._finite, parse_constant=_no_constant
        )

    def decode(self, text: str) -> Any:
        return self._decoder.decode(text)

    def _count(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise _too_many()

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._count()
        result = dict(pairs)
        if len(result) != len(pairs):
            name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            message = f"The key {name[:_MAX_NAME_CHARS]!r} appears twice."
            raise bad_request(message, code="invalid_json")
        return result

    def _finite(self, text: str) -> float:
        self._count()
        value = float(text)
        if not math.isfinite(value):
            raise _invalid("a number is too large")
        return value


def _no_constant(name: str) -> float:
    raise _invalid(f"{name} is no number")


def _check_nesting(body: bytes, value: dict[str, Any]) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    level: list[Any] = [value]
    num_parts = 0
    for _ in range(MAX_DEPTH):
        num_parts += len(level)
        level = [child for container in level for child in _containers(container, MAX_PARTS - num_parts)]
        if not level:
            return
    raise _too_deep()


def _containers(container: Any, most: int) -> list[Any]:
    children = container.values() if isinstance(container, dict) else container
    kinds = list(map(type, children))
    count = kinds.count(dict) + kinds.count(list)
    if count > most:
        raise _too_many()
    return [child for child in children if isinstance(child, dict | list)] if count else []


def _check_surrogates(body: bytes, value: dict[str, Any]) -> None:
    if not _SURROGATE_ESCAPE.search(body):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _invalid("a surrogate stands without its partner") from None
