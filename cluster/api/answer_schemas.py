"""What the OpenAI routes take in headers and answer, for the API's description. `shapes.py` writes it."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from cluster.api.described import BEHIND_DOOR, ERROR_REF, Responses, answer_schema, media_of, refuses
from cluster.api.shapes import ChatChoice, ChatChunkChoice, TextChoice, UsageBody
from tenants.terms import ServiceClass


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: UsageBody


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: UsageBody


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: UsageBody | UnsetType | None = UNSET


class TextCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: UsageBody | UnsetType | None = UNSET


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    """Prompt + output, in tokens."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"]
    data: tuple[ModelView, ...]


_DECIMAL_SECONDS = (
    r"^(0\.[0-9]{0,8}[1-9]"
    r"|([1-9][0-9]{0,3}|[1-7][0-9]{4}|8[0-5][0-9]{3}|86[0-3][0-9]{2})(\.[0-9]{1,9})?"
    r"|86400)$"
)


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


_LIMIT_HEADERS = {
    **{
        f"X-RateLimit-{what}-{unit}": _header(meaning + which, kind)
        for unit, which in (
            ("Requests", ""),
            ("Tokens", " Of input and output tokens, whichever has the smaller share left."),
        )
        for what, meaning, kind in (
            ("Limit", "What may be taken at once.", "integer"),
            ("Remaining", "What is left of it.", "integer"),
            ("Reset", "Until all of it is there again, as in `1m30s`.", "string"),
        )
    },
    "X-Headrace-Soft-Limits": _header("Limits that are nearly used up, by name, with commas."),
}
_ANSWER_HEADERS = {
    **_LIMIT_HEADERS,
    "X-Headrace-Max-Tokens": _header(
        "The effective maximum, where it is lower than asked: by context, tier, budget, or while many wait.",
        "integer",
    ),
    "X-Headrace-Replica": _header("Who answers."),
    "X-Headrace-Cached-Tokens": _header("Prompt tokens from the cache; not on streams.", "integer"),
    "X-Headrace-Queue-Ms": _header(
        "Milliseconds in the queues of gateway and replica; not on streams.", "integer"
    ),
    "X-Headrace-Replayed": _header("`true` on the stored answer of an earlier request with this key."),
}
_TURNED_AWAY = {
    429: "A limit of the tenant's is reached, or enough of its requests wait (`queue_full`); `Retry-After` "
    "says when to come back.",
    503: "It would not be answered in time, and `Retry-After` says when it would (`overloaded`); its time is "
    "over (`deadline_exceeded`); no replica can serve (`no_capacity`), or the record of tenants cannot be "
    "asked (`store_unavailable`).",
}
PARAMETERS: dict[str, Any] = {
    "parameters": [
        {
            "name": "X-Request-Timeout",
            "in": "header",
            "required": False,
            "description": "Seconds that the whole answer may take; default 600.",
            "schema": {"type": "string", "pattern": _DECIMAL_SECONDS},
        },
        {
            "name": "X-Headrace-Class",
            "in": "header",
            "required": False,
            "description": "Who goes first: `interactive` before `batch`, which may wait longer and is "
            "turned away first. Default: the tenant's own; a tenant of batch may not ask for more.",
            "schema": {"type": "string", "enum": list(get_args(ServiceClass))},
        },
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Names the request: repeated with the same key and body within 24 hours it is "
            "generated and charged once, and its answer is sent again.",
            "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
        },
    ]
}


def generates(kind: Any, chunk: Any, example: Any) -> Responses:
    """A whole answer of `kind`, or an event stream of `chunk`s, or a refusal."""
    content = {
        "application/json": media_of(answer_schema(kind), example),
        "text/event-stream": {"itemSchema": _events(chunk)},
    }
    answered = {
        "description": "All of the answer; with `stream`, its events as they come.",
        "content": content,
        "headers": _ANSWER_HEADERS,
    }
    refused = refuses(400, 402, 404, 408, 409, 413, 422, 429, *BEHIND_DOOR)
    for status, meaning in _TURNED_AWAY.items():
        refused[status]["description"] = meaning
    for status in (400, 402, 429):
        refused[status]["headers"] = {**refused[status].get("headers", {}), **_LIMIT_HEADERS}
    return {200: answered, **refused}


def _events(chunk: Any) -> dict[str, Any]:
    """Chunks and then `[DONE]`; or an error, and nothing behind it."""
    told = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [answer_schema(chunk), {"$ref": ERROR_REF}]},
    }
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, told]}},
        "required": ["data"],
    }


_USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 2,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 0},
}
_ANSWER = {"id": "chatcmpl-1", "created": 1796000000, "model": "tiny", "usage": _USAGE}
CHAT_EXAMPLE = {
    **_ANSWER,
    "object": "chat.completion",
    "choices": [
        {
            "message": {"content": "Hello", "role": "assistant", "refusal": None},
            "finish_reason": "stop",
            "index": 0,
            "logprobs": None,
        }
    ],
}
TEXT_EXAMPLE = {
    **_ANSWER,
    "object": "text_completion",
    "choices": [{"text": " Paris", "finish_reason": "stop", "index": 0, "logprobs": None}],
}
CHAT_REQUEST = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
TEXT_REQUEST = {"model": "tiny", "prompt": "The capital of France is", "max_tokens": 4}
MODEL_EXAMPLE = {
    "id": "tiny",
    "object": "model",
    "created": 1796000000,
    "owned_by": "headrace",
    "max_model_len": 4096,
}
