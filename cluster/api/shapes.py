"""OpenAI's answer bodies: whole, and as the frames of an event stream. Data only, encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from cluster.api.logprobs import ChatLogprobs, TextLogprobs, TokenNames, chat_logprobs, text_logprobs
from cluster.generation import ToldToken, Usage

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
    index: int
    logprobs: ChatLogprobs | None = None


class ChatDelta(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    delta: ChatDelta
    finish_reason: Finish | None = None
    index: int
    logprobs: ChatLogprobs | None = None


class TextChoice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    text: str
    finish_reason: Finish | None = None
    index: int
    logprobs: TextLogprobs | None = None


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
    names: TokenNames | None
    """To tell logprobs with; None: they were not asked for."""

    def whole(self, kind: str, choices: Sequence[ChatChoice | TextChoice], usage: Usage) -> bytes:
        return _encoder.encode(self._body(kind, tuple(choices), _usage_body(usage)))

    def chunk(self, kind: str, choice: ChatChunkChoice | TextChoice) -> bytes:
        return frame(self._body(kind, (choice,), None if self.include_usage else UNSET))

    def usage_chunk(self, kind: str, usage: Usage) -> bytes:
        return frame(self._body(kind, (), _usage_body(usage)))

    def _body(
        self,
        kind: str,
        choices: tuple[ChatChoice | ChatChunkChoice | TextChoice, ...],
        usage: UsageBody | UnsetType | None,
    ) -> Body:
        return Body(
            id=self.answer_id,
            object=kind,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One sibling's whole answer."""

    text: str
    finish: Finish
    tokens: Sequence[ToldToken]


class Shape(Protocol):
    """How one endpoint says it. All but `whole` are frames of the stream; `index` is the sibling's."""

    @property
    def label(self) -> Label: ...

    def opening(self, index: int) -> bytes:
        """Sent before the sibling's first text, and even if none comes."""

    def text(self, index: int, text: str, tokens: Sequence[ToldToken]) -> bytes: ...

    def finish(self, index: int, reason: Finish) -> bytes: ...

    def usage(self, usage: Usage) -> bytes:
        """Once, after the last finish."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The JSON body of an answer that is not streamed; `choices` by index."""


@dataclass(frozen=True, slots=True)
class ChatShape:
    label: Label

    def opening(self, index: int) -> bytes:
        return self._chunk(ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")))

    def text(self, index: int, text: str, tokens: Sequence[ToldToken]) -> bytes:
        logprobs = self._logprobs(tokens) if tokens else None
        return self._chunk(ChatChunkChoice(index=index, delta=ChatDelta(content=text), logprobs=logprobs))

    def finish(self, index: int, reason: Finish) -> bytes:
        return self._chunk(ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=reason))

    def usage(self, usage: Usage) -> bytes:
        return self.label.usage_chunk("chat.completion.chunk", usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        bodies = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.text),
                finish_reason=choice.finish,
                logprobs=self._logprobs(choice.tokens),
            )
            for index, choice in enumerate(choices)
        ]
        return self.label.whole("chat.completion", bodies, usage)

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        return self.label.chunk("chat.completion.chunk", choice)

    def _logprobs(self, tokens: Sequence[ToldToken]) -> ChatLogprobs | None:
        return chat_logprobs(tokens, self.label.names) if self.label.names else None


@dataclass(frozen=True, slots=True)
class TextShape:
    label: Label

    def opening(self, index: int) -> bytes:
        return b""

    def text(self, index: int, text: str, tokens: Sequence[ToldToken]) -> bytes:
        logprobs = self._logprobs(tokens) if tokens else None
        return self._chunk(TextChoice(index=index, text=text, logprobs=logprobs))

    def finish(self, index: int, reason: Finish) -> bytes:
        return self._chunk(TextChoice(index=index, text="", finish_reason=reason))

    def usage(self, usage: Usage) -> bytes:
        return self.label.usage_chunk("text_completion", usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        bodies = [
            TextChoice(
                index=index,
                text=choice.text,
                finish_reason=choice.finish,
                logprobs=self._logprobs(choice.tokens),
            )
            for index, choice in enumerate(choices)
        ]
        return self.label.whole("text_completion", bodies, usage)

    def _chunk(self, choice: TextChoice) -> bytes:
        return self.label.chunk("text_completion", choice)

    def _logprobs(self, tokens: Sequence[ToldToken]) -> TextLogprobs | None:
        return text_logprobs(tokens, self.label.names) if self.label.names else None


def _usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
    )
