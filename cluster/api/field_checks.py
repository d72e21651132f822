"""Checks of single request fields that pydantic's own types can't say; each says what is wanted."""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import PydanticCustomError

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_BIASES = 300
MAX_BIAS = 100

_DECIMAL_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def problem(message: str, *, field: str | None = None) -> PydanticCustomError:
    """`field` names the field at fault where the check is the whole model's."""
    return PydanticCustomError("invalid_value", message, {"field": field} if field else None)


def read_stop_strings(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise problem("must be a string or a list of strings")
    if not 1 <= len(stops) <= MAX_STOP_STRINGS:
        raise problem(f"must hold 1 to {MAX_STOP_STRINGS} strings")
    if not all(1 <= len(one) <= MAX_STOP_CHARS for one in stops):
        raise problem(f"each stop string must have 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


def read_stop_token_ids(value: Any) -> Any:
    if not isinstance(value, list) or not {int}.issuperset(map(type, value)):
        raise problem("must be a list of token ids")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise problem(f"must hold at most {MAX_STOP_TOKEN_IDS} token ids")
    return tuple(value)


def read_logit_bias(value: Any) -> Any:
    """{"token id": bias} as pairs. Each id has one spelling, so none is there twice."""
    if not isinstance(value, dict):
        raise problem("must be an object that maps token ids to numbers")
    if len(value) > MAX_BIASES:
        raise problem(f"must hold at most {MAX_BIASES} token ids")
    if not all(_DECIMAL_ID.fullmatch(token_id) for token_id in value):
        raise problem("each key must be a token id in decimal digits")
    if not {int, float}.issuperset(map(type, value.values())):
        raise problem("each bias must be a number")
    if not all(abs(bias) <= MAX_BIAS for bias in value.values()):
        raise problem(f"each bias must be from -{MAX_BIAS} to {MAX_BIAS}")
    return tuple((int(token_id), float(bias)) for token_id, bias in value.items())


def read_content(value: Any) -> Any:
    """Text parts are joined without anything between them: a mark split over two is still one."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise problem("must be a string or a non-empty list of text parts")
    return "".join(_part_text(index, part) for index, part in enumerate(value))


def _part_text(index: int, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise problem(f"part {index} must be of type 'text'; no other kind is supported")
    text = part.get("text")
    if not isinstance(text, str) or part.keys() != {"type", "text"}:
        raise problem(f"part {index} must hold exactly 'type' and 'text', a string")
    return text


def read_prompt(value: Any) -> Any:
    """A string or a list of token ids; a list that holds exactly one of these is that one."""
    if isinstance(value, list) and not {str, list}.isdisjoint(map(type, value)):
        if len(value) > 1:
            raise problem("must be one prompt: a string or a list of token ids")
        value = value[0]
    if not value and isinstance(value, str | list):
        raise problem("must not be empty")
    if isinstance(value, list) and set(map(type, value)) == {int}:
        return tuple(value)
    if not isinstance(value, str):
        raise problem("must be a string or a list of token ids")
    return value
