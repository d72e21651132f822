"""OpenAI's answer bodies: whole, and as the frames of an event stream. Data only, encoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from cluster.generation import Usage

Finish = Literal["stop", "length"]

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

_encoder = msgspec.json.Encoder()


def frame(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


class CachedTokens(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class AssistantMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    message: AssistantMessage
    finish_reason: Finish
    index: int = 0
    logprobs: None = None


class ChatDelta(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    delta: ChatDelta
    finish_reason: Finish | None = None
    index: int = 0
    logprobs: None = None


class TextChoice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    text: str
    finish_reason: Finish | None = None
    index: int = 0
    logprobs: None = None


class Body(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`usage` is left out, null, or there, as the client asked."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChatChoice | ChatChunkChoice | TextChoice, ...]
    usage: UsageBody | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class Label:
    """What all bodies of one answer share. `created` is in Unix seconds."""

    answer_id: str
    created: int
    model: str
    include_usage: bool

    def body(
        self, kind: str, *choices: ChatChoice | ChatChunkChoice | TextChoice, usage: Usage | None
    ) -> Body:
        return Body(
            id=self.answer_id,
            object=kind,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=None if usage is None else _usage_body(usage),
        )

    def chunk(self, kind: str, choice: ChatChunkChoice | TextChoice) -> bytes:
        return frame(
            Body(
                id=self.answer_id,
                object=kind,
                created=self.created,
                model=self.model,
                choices=(choice,),
                usage=None if self.include_usage else UNSET,
            )
        )


class Shape(Protocol):
    """How one endpoint says it. All but `whole` are frames of the stream, in this order."""

    @property
    def label(self) -> Label: ...

    def opening(self) -> bytes:
        """Sent before the first text, and even if none comes."""

    def text(self, text: str) -> bytes: ...

    def finish(self, reason: Finish) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...

    def whole(self, text: str, reason: Finish, usage: Usage) -> bytes:
        """The JSON body of an answer that is not streamed."""


@dataclass(frozen=True, slots=True)
class ChatShape:
    label: Label

    def opening(self) -> bytes:
        return self._chunk(ChatChunkChoice(delta=ChatDelta(role="assistant", content="")))

    def text(self, text: str) -> bytes:
        return self._chunk(ChatChunkChoice(delta=ChatDelta(content=text)))

    def finish(self, reason: Finish) -> bytes:
        return self._chunk(ChatChunkChoice(delta=ChatDelta(), finish_reason=reason))

    def usage(self, usage: Usage) -> bytes:
        return frame(self.label.body("chat.completion.chunk", usage=usage))

    def whole(self, text: str, reason: Finish, usage: Usage) -> bytes:
        choice = ChatChoice(message=AssistantMessage(content=text), finish_reason=reason)
        return _encoder.encode(self.label.body("chat.completion", choice, usage=usage))

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        return self.label.chunk("chat.completion.chunk", choice)


@dataclass(frozen=True, slots=True)
class TextShape:
    label: Label

    def opening(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        return self.label.chunk("text_completion", TextChoice(text=text))

    def finish(self, reason: Finish) -> bytes:
        return self.label.chunk("text_completion", TextChoice(text="", finish_reason=reason))

    def usage(self, usage: Usage) -> bytes:
        return frame(self.label.body("text_completion", usage=usage))

    def whole(self, text: str, reason: Finish, usage: Usage) -> bytes:
        choice = TextChoice(text=text, finish_reason=reason)
        return _encoder.encode(self.label.body("text_completion", choice, usage=usage))


def _usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
    )
