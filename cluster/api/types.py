"""What a request body may hold: strict types and bounds for every field that we use.

Strict means: true is no number, "1" is no number, 1.0 is no integer; an integer is a fine float.
Other fields than these are judged before (`openai_fields.py`), so a field here is absent or not null.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from cluster.api.field_checks import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    problem,
    read_content,
    read_logit_bias,
    read_prompt,
    read_stop_strings,
    read_stop_token_ids,
)

MAX_MESSAGES = 16_384
MAX_N = 16
MAX_TOP_LOGPROBS = 20
MIN_REPETITION_PENALTY = 0.01
"""It divides logits: one much smaller would send them beyond what a float can hold."""
INT64_MAX = 2**63 - 1

Name = Annotated[str, Field(min_length=1, max_length=256)]
Tokens = Annotated[int, Field(ge=1, le=INT64_MAX)]
_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
_Stops = Annotated[list[_Stop], Field(min_length=1, max_length=MAX_STOP_STRINGS)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
_Text = Annotated[str, Field(min_length=1)]
_One = Field(min_length=1, max_length=1)
_Prompt = _Text | _TokenIds | Annotated[list[_Text], _One] | Annotated[list[_TokenIds], _One]
_DecimalId = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class StreamOptions(_Model):
    """`include_obfuscation` is accepted and ignored: we never pad."""

    include_usage: bool = False
    include_obfuscation: bool = False


class TextPart(_Model):
    """One of several pieces of a turn's text; `read_content` checks it."""

    type: Literal["text"]
    text: str


class Message(_Model):
    """One turn. `tool_call_id` is what tool results carry; the template has no use for it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str,
        PlainValidator(
            read_content, json_schema_input_type=str | Annotated[list[TextPart], Field(min_length=1)]
        ),
    ]
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    @model_validator(mode="after")
    def _user_says_something(self) -> Message:
        if self.role in ("user", "tool") and not self.content:
            raise problem(f"must not be empty in a {self.role} message", field="content")
        return self


class SamplingFields(_Model):
    """Fields that both endpoints share. Token ids are held against the vocabulary later (`sampling.py`)."""

    model: Name
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    """Answers to the one prompt; also at most what a replica runs at once."""
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    """Only as another word for `n`."""
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0
    """So many tokens come before an end token or stop token id may; at most the effective `max_tokens`."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """0 is refused; for greedy text set `temperature` 0."""
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] = 0
    """0 and -1 keep the whole vocabulary, as does anything larger than it."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=10)] = 1.0
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        PlainValidator(
            read_logit_bias,
            json_schema_input_type=Annotated[
                dict[_DecimalId, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]],
                Field(max_length=MAX_BIASES),
            ],
        ),
        Field(json_schema_extra={"default": {}, "additionalProperties": False}),
    ] = ()
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: Annotated[
        tuple[str, ...],
        PlainValidator(read_stop_strings, json_schema_input_type=_Stop | _Stops),
        Field(json_schema_extra={"default": None}),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        PlainValidator(
            read_stop_token_ids,
            json_schema_input_type=Annotated[
                list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_TOKEN_IDS)
            ],
        ),
    ] = ()
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise problem("is allowed only with 'stream': true", field="stream_options")
        return self

    @model_validator(mode="after")
    def _best_of_is_n(self) -> SamplingFields:
        if self.best_of not in (None, self.n):
            raise problem("must equal 'n': answers are not ranked", field="best_of")
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        """None: as many as the context and the tier allow."""
        return self.max_tokens

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to tell beside each output token; None: no logprobs."""

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatCompletionRequest(SamplingFields):
    """`POST /v1/chat/completions`. `max_tokens` is the older name of `max_completion_tokens`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0

    @model_validator(mode="after")
    def _one_maximum(self) -> ChatCompletionRequest:
        if self.max_completion_tokens is not None and self.max_tokens not in (
            None,
            self.max_completion_tokens,
        ):
            raise problem("must not differ from 'max_tokens'", field="max_completion_tokens")
        return self

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise problem("is allowed only with 'logprobs': true", field="top_logprobs")
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`."""

    prompt: Annotated[str | tuple[int, ...], PlainValidator(read_prompt, json_schema_input_type=_Prompt)]
    logprobs: TopLogprobs | None = None
    """How many of the likeliest tokens to tell beside each output token."""

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs
