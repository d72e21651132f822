"""The file of `--public-prefix`: JSONL, one beginning of prompts a line, as text, token ids or messages.

    {"text": "You are a helpful clerk of the water board. …"}
    {"token_ids": [1, 9690, 198]}
    {"messages": [{"role": "system", "content": "You are a helpful clerk. …"}]}

Text is split as `/v1/completions` splits it, messages as the chat template writes them up to the end of
the last one. The last tokens of a text may come out otherwise where a prompt goes on; only full blocks of
tokens are shared, so a text that should be whole in them wants some more behind it. A prefix has at least one
block, 16 tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.jsonl_file import read_jsonl
from engine.chat_template import ChatMessage, ChatTemplate, TemplateError
from engine.tokenizer import Tokenizer

MAX_PUBLIC_PREFIXES = 64
MAX_PUBLIC_TOKENS = 2**18
"""Of all together."""

_Text = Annotated[str, Field(min_length=1, max_length=2**20)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class _Turn(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    role: Literal["system", "user", "assistant"]
    content: _Text


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    text: _Text | None = None
    token_ids: _TokenIds | None = None
    messages: Annotated[list[_Turn], Field(min_length=1, max_length=64)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_other(cls, line: Any) -> Any:
        if isinstance(line, dict) and (others := sorted(line.keys() - cls.model_fields.keys())):
            said = "{field}: there is no such field; give one of text, token_ids and messages"
            raise PydanticCustomError("invalid_value", said, {"field": others[0]})
        return line

    @model_validator(mode="after")
    def _one_of_three(self) -> _Line:
        given = [field for field in (self.text, self.token_ids, self.messages) if field is not None]
        if len(given) != 1:
            raise PydanticCustomError("invalid_value", "give one of text, token_ids and messages")
        return self


def read_public_prefixes(
    path: Path, tokenizer: Tokenizer, template: ChatTemplate | None, block_size: int
) -> tuple[tuple[int, ...], ...]:
    """The prefixes in tokens. Raises ValueError: one line that names file, line and field."""
    prefixes: list[tuple[int, ...]] = []
    for place, line in read_jsonl(path, _Line):
        try:
            prefix = _token_ids(line, tokenizer, template)
        except (TemplateError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from None
        if len(prefix) < block_size:
            raise ValueError(
                f"{place}: has {len(prefix)} tokens, and a block, the least to share, {block_size}"
            )
        prefixes.append(prefix)
    if not 1 <= len(prefixes) <= MAX_PUBLIC_PREFIXES:
        raise ValueError(f"{path} holds {len(prefixes)} prefixes; 1 to {MAX_PUBLIC_PREFIXES} are allowed")
    if (num_tokens := sum(map(len, prefixes))) > MAX_PUBLIC_TOKENS:
        raise ValueError(f"{path} holds {num_tokens} tokens; at most {MAX_PUBLIC_TOKENS} are allowed")
    return tuple(prefixes)


def _token_ids(line: _Line, tokenizer: Tokenizer, template: ChatTemplate | None) -> tuple[int, ...]:
    if line.text is not None:
        return tuple(tokenizer.encode(line.text))
    if line.token_ids is not None:
        if max(line.token_ids) >= tokenizer.vocab_size:
            raise ValueError(f"token_ids: the vocabulary ends at {tokenizer.vocab_size - 1}")
        return tuple(line.token_ids)
    assert line.messages is not None
    if template is None:
        raise ValueError("messages: this model has no chat template")
    turns = [ChatMessage(turn.role, turn.content) for turn in line.messages]
    return template.encode(turns, add_generation_prompt=False)
