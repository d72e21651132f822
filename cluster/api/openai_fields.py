"""OpenAI's other request fields: what is accepted and ignored, and what is refused by name.

A field that would change the answer and isn't there yet is accepted only with the value that asks
for nothing (SDKs and chat programs send those), so that nobody gets another answer than the one asked for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from cluster.api.errors import ApiError, bad_request

HARMLESS = frozenset(
    {
        "metadata",  # labels for OpenAI's dashboards
        "parallel_tool_calls",  # says something about tools only, and there are none
        "prediction",  # a hint that makes an answer faster, never another one
        "prompt_cache_key",  # a hint for routing; the cache works without
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",  # the tier belongs to the key
        "store",  # we never store
    }
)
"""Accepted and ignored: they don't change the answer."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
"""Known and not there yet: the values that ask for nothing. null always does."""

NEUTRAL_IN_MESSAGE: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_calls": ([],),
}
"""The same for a message; clients send back what an assistant's message held."""

_MAX_NAME_CHARS = 64


def own_fields(fields: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """The request's fields that we use, without nulls.

    Raises `ApiError` 400 naming the first other one that is unknown or asks for something.
    """
    _check(fields, own, HARMLESS, NEUTRAL, where="")
    return {name: value for name, value in fields.items() if name in own and value is not None}


def own_message_fields(fields: Mapping[str, Any], own: Collection[str], where: str) -> dict[str, Any]:
    """The same for the message at `where`, as in `messages.0`."""
    _check(fields, own, frozenset(), NEUTRAL_IN_MESSAGE, where=f"{where}.")
    return {name: value for name, value in fields.items() if name in own and value is not None}


def _check(
    fields: Mapping[str, Any],
    own: Collection[str],
    harmless: Collection[str],
    neutral: Mapping[str, tuple[Any, ...]],
    where: str,
) -> None:
    for name, value in fields.items():
        if name in own or name in harmless:
            continue
        param = where + name[:_MAX_NAME_CHARS]
        if name not in neutral:
            raise bad_request(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
        if value is not None and not any(_is_same(value, allowed) for allowed in neutral[name]):
            raise _unsupported(param, neutral[name])


def _is_same(value: Any, other: Any) -> bool:
    """Equal, and true is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _unsupported(param: str, neutral: tuple[Any, ...]) -> ApiError:
    allowed = " or ".join([*(json.dumps(value) for value in neutral), "null"])
    message = f"'{param}' is not supported here: leave it out, or send {allowed}."
    return bad_request(message, param=param, code="unsupported_parameter")
