"""A conversation as the model's own template writes it, in tokens; users cannot forge its marks.

The template (Jinja, in a sandbox) makes text, and control tokens are recognised in that text. So
that a user's text is never taken for one, every place in it where a control literal begins is broken
with a noncharacter that occurs in no message; after control tokens were recognised it is taken out
again, and what lies between them is encoded as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NoReturn

import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.loading.errors import ModelError
from engine.tokenizer import Tokenizer

MAX_SOURCE_CHARACTERS = 2**18
MAX_RENDERED_CHARACTERS = 2**24
_REMEDY = "download the model again, or mend its template"

_NONCHARACTERS = [chr(c) for c in range(0xFDD0, 0xFDF0)] + [
    chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)
]


class TemplateError(Exception):
    """The template refused these messages, or failed on them."""


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn, as text; several content parts are joined before."""

    role: str
    content: str
    name: str | None = None


class ChatTemplate:
    """A compiled template and the control tokens that it may emit.

    Raises ModelError for a source that is no template or longer than `MAX_SOURCE_CHARACTERS`.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ModelError(
                f"the chat template has {len(source)} characters, over {MAX_SOURCE_CHARACTERS}", _REMEDY
            )
        try:
            self._template = _environment().from_string(source)
        except Exception as error:  # Jinja makes Python of it, which may refuse it in ways of its own
            raise ModelError(f"the chat template is malformed: {error}", _REMEDY) from None
        self._source = source
        self._tokenizer = tokenizer
        self._control_tokens = dict(tokenizer.control_tokens)
        short = [literal for literal in self._control_tokens if len(literal) < 2]
        if short:
            raise ModelError(f"control token {short[0]!r} is too short to tell from text", _REMEDY)
        self._guard = _Guard(tuple(self._control_tokens))
        self._literal_of = {i: literal for literal, i in self._control_tokens.items()}

    def encode(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Token ids of the conversation, up to where the assistant's next turn begins.

        Without `add_generation_prompt` up to the end of the last message, if the template can tell.

        Time is linear in the messages' length. Raises TemplateError with the template's own words if
        it refuses them (`raise_exception`), fails, or writes more than `MAX_RENDERED_CHARACTERS`.
        """
        texts = [text for m in messages for text in (m.role, m.content, m.name or "")]
        sentinel = _absent_noncharacter([self._source, *texts])
        rendered = self._render(
            [self._guarded(message, sentinel) for message in messages], add_generation_prompt
        )
        ids: list[int] = []
        for piece in self._guard.split(rendered):
            control_id = self._control_tokens.get(piece)
            if control_id is not None:
                ids.append(control_id)
            elif piece:
                ids += self._tokenizer.encode_piece(piece.replace(sentinel, ""), is_first=not ids)
        return tuple(ids)

    def _guarded(self, message: ChatMessage, sentinel: str) -> dict[str, str]:
        fields = {"content": self._guard.broken(message.content, sentinel)}
        # Templates compare roles, and some build marks from them: a plain word stays as it is.
        is_word = message.role.isidentifier()
        fields["role"] = message.role if is_word else self._guard.broken(message.role, sentinel)
        if message.name is not None:
            fields["name"] = self._guard.broken(message.name, sentinel)
        return fields

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        pieces, length = [], 0
        try:
            for piece in self._template.generate(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                bos_token=self._literal(self._tokenizer.bos_token_id),
                eos_token=self._literal(next(iter(self._tokenizer.eos_token_ids), None)),
            ):
                length += len(piece)
                if length > MAX_RENDERED_CHARACTERS:
                    raise TemplateError(
                        f"the chat template wrote more than {MAX_RENDERED_CHARACTERS} characters"
                    )
                pieces.append(piece)
        except TemplateError:
            raise
        except Exception as error:  # a template can raise whatever Python can: all of it means the same
            raise TemplateError(f"the chat template failed: {error}") from None
        return "".join(pieces)

    def _literal(self, token_id: int | None) -> str:
        return "" if token_id is None else self._literal_of.get(token_id, "")


class _Guard:
    """Finds control literals, and breaks those that a user's text holds or could complete."""

    def __init__(self, literals: Sequence[str]) -> None:
        longest_first = sorted(literals, key=len, reverse=True)
        any_literal = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._literal = re.compile(f"({any_literal})")
        self._literal_start = re.compile(f"(?={any_literal})")
        self._literals = longest_first
        self._longest = max(map(len, literals), default=0)
        self._beginnings = {literal[:i] for literal in literals for i in range(1, len(literal))}
        self._ends = {literal[i:] for literal in literals for i in range(1, len(literal))}

    def split(self, text: str) -> list[str]:
        """`text` cut into plain pieces and control literals, in order."""
        return self._literal.split(text)

    def broken(self, text: str, sentinel: str) -> str:
        """`text` with the sentinel inside every literal, overlapping ones too, and at a border where
        what the template writes next to it could complete one.

        White space around the text stays outermost, because templates trim it.
        """
        core = text.strip()
        if not core:
            return text
        begin = text.index(core)
        starts = [match.start() + 1 for match in self._literal_start.finditer(core)]
        pieces = [core[i:j] for i, j in pairwise([0, *starts, len(core)])]
        before = sentinel if self._could_complete(core) else ""
        after = sentinel if self._could_begin(core) else ""
        return text[:begin] + before + sentinel.join(pieces) + after + text[begin + len(core) :]

    def _could_complete(self, core: str) -> bool:
        is_inside = len(core) < self._longest and any(core in literal for literal in self._literals)
        return is_inside or any(core[:n] in self._ends for n in range(1, self._longest))

    def _could_begin(self, core: str) -> bool:
        return any(core[-n:] in self._beginnings for n in range(1, self._longest))


def _absent_noncharacter(texts: Iterable[str]) -> str:
    seen = set().union(*texts)
    for candidate in _NONCHARACTERS:
        if candidate not in seen:
            return candidate
    raise TemplateError("the messages hold every noncharacter of Unicode; none is left to mark borders with")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(f"the chat template refused the messages: {message}")


def _to_json(value: object, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)
