"""The bytes that a gateway would send for the bench's answers, for servers that have no gateway."""

from __future__ import annotations

import msgspec

from cluster.api.shapes import DONE, Label, TextShape
from cluster.generation import Usage
from loadtest.gateway_bench.answers import TEXT

MODEL = "scripted"
_SHAPE = TextShape(Label("cmpl-" + "0" * 32, 1_700_000_000, MODEL, include_usage=True, names=None))


class ScriptedRequest(msgspec.Struct):
    prompt: list[int]
    max_tokens: int


def read_request(body: bytes) -> ScriptedRequest:
    return msgspec.json.decode(body, type=ScriptedRequest)


def token_event(text: str) -> bytes:
    return _SHAPE.text(0, text, ())


def last_events(request: ScriptedRequest) -> bytes:
    usage = Usage(len(request.prompt), request.max_tokens, cached_tokens=0)
    return _SHAPE.finish(0, "length") + _SHAPE.usage(usage) + DONE


def tokens_of(request: ScriptedRequest) -> str:
    """One token a character."""
    return TEXT[: request.max_tokens]
