"""JSON from outside, read strictly: one meaning or an error, and nothing that breaks later code.

Refused, beyond what is no JSON at all: a byte order mark, bytes that are no UTF-8, duplicate keys,
numbers that are no finite numbers, surrogates without a partner, deep nesting, integers of thousands
of digits. Time is linear in the body.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from typing import Any

from cluster.api.errors import ApiError, bad_request

MAX_DEPTH = 64
_MAX_NAME_CHARS = 64

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises `ApiError` 400 `invalid_json`; its message quotes no values."""
    if body.startswith(codecs.BOM_UTF8):
        raise _invalid("it begins with a byte order mark")
    try:
        value = _decoder.decode(body.decode())
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
    _check_depth(body, value)
    _check_surrogates(body, value)
    return value


def _invalid(reason: str) -> ApiError:
    return bad_request(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _too_deep() -> ApiError:
    return _invalid(f"it is nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _invalid(f"the key {twice[:_MAX_NAME_CHARS]!r} appears twice")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _invalid("a number is too large")
    return value


def _no_constant(name: str) -> float:
    raise _invalid(f"{name} is no number")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)


def _check_depth(body: bytes, value: dict[str, Any]) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for container in level for child in _containers(container)]
        if not level:
            return
    raise _too_deep()


def _containers(container: Any) -> list[Any]:
    children = container.values() if isinstance(container, dict) else container
    if {dict, list}.isdisjoint(map(type, children)):
        return []
    return [child for child in children if isinstance(child, dict | list)]


def _check_surrogates(body: bytes, value: dict[str, Any]) -> None:
    if not _SURROGATE_ESCAPE.search(body):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _invalid("a surrogate stands without its partner") from None
