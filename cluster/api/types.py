"""What a request body may hold: strict types and bounds for every field that we use.

Strict means: true is no number, "1" is no number, 1.0 is no integer; an integer is a fine float.
Other fields than these are judged before (`openai_fields.py`), so a field here is absent or not null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
MAX_MESSAGES = 16_384
INT64_MAX = 2**63 - 1

Name = Annotated[str, Field(min_length=1, max_length=256)]
Tokens = Annotated[int, Field(ge=1, le=INT64_MAX)]


def _problem(message: str, *, field: str | None = None) -> PydanticCustomError:
    """`field` names the field at fault where the check is the whole model's."""
    return PydanticCustomError("invalid_value", message, {"field": field} if field else None)


def _stop_strings(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise _problem("must be a string or a list of strings")
    if not 1 <= len(stops) <= MAX_STOP_STRINGS:
        raise _problem(f"must hold 1 to {MAX_STOP_STRINGS} strings")
    if not all(1 <= len(one) <= MAX_STOP_CHARS for one in stops):
        raise _problem(f"each stop string must have 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


def _content_text(value: Any) -> Any:
    """Text parts are joined without anything between them: a mark split over two is still one."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _problem("must be a string or a non-empty list of text parts")
    return "".join(_part_text(index, part) for index, part in enumerate(value))


def _part_text(index: int, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise _problem(f"part {index} must be of type 'text'; no other kind is supported")
    text = part.get("text")
    if not isinstance(text, str) or part.keys() != {"type", "text"}:
        raise _problem(f"part {index} must hold exactly 'type' and 'text', a string")
    return text


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class StreamOptions(_Model):
    """`include_obfuscation` is accepted and ignored: we never pad."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Message(_Model):
    """One turn. `tool_call_id` is what tool results carry; the template has no use for it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, PlainValidator(_content_text, json_schema_input_type=str | list[dict[str, str]])]
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    @model_validator(mode="after")
    def _user_says_something(self) -> Message:
        if self.role in ("user", "tool") and not self.content:
            raise _problem(f"must not be empty in a {self.role} message", field="content")
        return self


class SamplingFields(_Model):
    """Fields that both endpoints share."""

    model: Name
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """0 is refused; for greedy text set `temperature` 0."""
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] = 0
    """0 and -1 keep the whole vocabulary, as does anything larger than it."""
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: Annotated[
        tuple[str, ...], PlainValidator(_stop_strings, json_schema_input_type=str | list[str])
    ] = ()
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise _problem("is allowed only with 'stream': true", field="stream_options")
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        """None: as many as the context and the tier allow."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatCompletionRequest(SamplingFields):
    """`POST /v1/chat/completions`. `max_tokens` is the older name of `max_completion_tokens`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _one_maximum(self) -> ChatCompletionRequest:
        if self.max_completion_tokens is not None and self.max_tokens not in (
            None,
            self.max_completion_tokens,
        ):
            raise _problem("must not differ from 'max_tokens'", field="max_completion_tokens")
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _one_prompt(value: Any) -> Any:
    """A string or a list of token ids; a list that holds exactly one of these is that one."""
    if isinstance(value, list) and not {str, list}.isdisjoint(map(type, value)):
        if len(value) > 1:
            raise _problem("must be one prompt: a string or a list of token ids")
        value = value[0]
    if not value and isinstance(value, str | list):
        raise _problem("must not be empty")
    if isinstance(value, list) and set(map(type, value)) == {int}:
        return tuple(value)
    if not isinstance(value, str):
        raise _problem("must be a string or a list of token ids")
    return value


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`."""

    prompt: Annotated[
        str | tuple[int, ...], PlainValidator(_one_prompt, json_schema_input_type=str | list[int])
    ]
