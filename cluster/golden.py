"""Golden prompts: what a replica must answer before it may serve, and the file that lists them.

The file is JSONL, one prompt a line: `{"prompt": "The capital of France is", "text": " Paris"}`. The prompt
is text or `prompt_token_ids`; the expected beginning of the greedy answer is `text`, `token_ids`, or
neither: then any answer will do, and of the prompt only what fits the context is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from cluster.jsonl_file import read_jsonl

MAX_GOLDEN_PROMPTS = 64
_TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_Text = Annotated[str, Field(min_length=1, max_length=4096)]
_TokenIds = Annotated[list[_TokenId], Field(min_length=1, max_length=4096)]


_ONE_OF_EACH: JsonDict = {
    "oneOf": [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
        {"required": ["prompt_token_ids"], "properties": {"prompt_token_ids": {"type": "array"}}},
    ],
    "not": {
        "required": ["text", "token_ids"],
        "properties": {"text": {"type": "string"}, "token_ids": {"type": "array"}},
    },
}


class GoldenPrompt(BaseModel):
    """One prompt and, if known, how its answer begins. Text is plain: it makes no control token."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        json_schema_extra=_ONE_OF_EACH,
    )

    prompt: _Text | None = None
    prompt_token_ids: _TokenIds | None = None
    text: _Text | None = None
    token_ids: Annotated[list[_TokenId], Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> GoldenPrompt:
        if (self.prompt is None) == (self.prompt_token_ids is None):
            raise PydanticCustomError("invalid_value", "give one of prompt and prompt_token_ids")
        if self.text is not None and self.token_ids is not None:
            raise PydanticCustomError("invalid_value", "give text or token_ids, not both")
        return self

    @property
    def is_expecting(self) -> bool:
        return self.text is not None or self.token_ids is not None

    def without_expectation(self) -> GoldenPrompt:
        return GoldenPrompt(prompt=self.prompt, prompt_token_ids=self.prompt_token_ids)

    def departure(self, answer: Sequence[int], token_bytes: Callable[[int], bytes]) -> int | None:
        """Index of the first token of `answer` that departs from what is expected; None: it holds.

        It is the answer's length if the answer ends too early.
        """
        if self.token_ids is not None:
            return _departure(self.token_ids, answer)
        if self.text is not None:
            return _departure_from_text(self.text.encode(), [token_bytes(token_id) for token_id in answer])
        return None


BUILT_IN = (GoldenPrompt(prompt="The capital of France is"),)
"""Asked where no others are given: it shows that the engine computes, not what."""


def _departure(expected: Sequence[int], answer: Sequence[int]) -> int | None:
    for index, (token_id, other) in enumerate(zip(expected, answer, strict=False)):
        if token_id != other:
            return index
    return None if len(answer) >= len(expected) else len(answer)


def _departure_from_text(expected: bytes, pieces: Sequence[bytes]) -> int | None:
    so_far = b""
    for index, piece in enumerate(pieces):
        so_far += piece
        if not (expected.startswith(so_far) or so_far.startswith(expected)):
            return index
    return None if so_far.startswith(expected) else len(pieces)


def read_golden(path: Path) -> tuple[GoldenPrompt, ...]:
    """The prompts in `path`. Raises ValueError: one line that names file, line and field."""
    prompts = tuple(prompt for _, prompt in read_jsonl(path, GoldenPrompt))
    if not 1 <= len(prompts) <= MAX_GOLDEN_PROMPTS:
        raise ValueError(f"{path} holds {len(prompts)} prompts; 1 to {MAX_GOLDEN_PROMPTS} are allowed")
    return prompts
