"""Logprobs as OpenAI's two endpoints show them: token texts and bytes beside natural logarithms.

Every token that counts as a completion token is told, in order, also an end token, and what a stop
string cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cluster.generation import ToldToken
from engine.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0
"""JSON knows no infinity: a token that cannot be drawn is told so."""


class TopLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True, gc=False):
    content: tuple[TokenLogprob, ...]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True, gc=False):
    """`top_logprobs` holds the taken token beside the likeliest; of equal texts the likeliest is told."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


class TokenNames:
    """How single tokens are shown: by their text, where bytes that are no UTF-8 become U+FFFD; a control
    token without text by its name.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._names = {token_id: name for name, token_id in tokenizer.control_tokens.items()}

    def bytes_of(self, token_id: int) -> tuple[int, ...] | None:
        """None for a token without text."""
        return tuple(self._token_bytes(token_id)) or None

    def text_of(self, token_id: int) -> str:
        data = self._token_bytes(token_id)
        return data.decode("utf-8", "replace") if data else self._names.get(token_id, "")


def chat_logprobs(tokens: Sequence[ToldToken], names: TokenNames) -> ChatLogprobs:
    return ChatLogprobs(tuple(_token_logprob(token, names) for token in tokens))


def _token_logprob(token: ToldToken, names: TokenNames) -> TokenLogprob:
    return TokenLogprob(
        token=names.text_of(token.token_id),
        logprob=_finite(token.logprobs.logprob),
        bytes=names.bytes_of(token.token_id),
        top_logprobs=tuple(
            TopLogprob(names.text_of(token_id), _finite(logprob), names.bytes_of(token_id))
            for token_id, logprob in token.logprobs.top
        ),
    )


def text_logprobs(tokens: Sequence[ToldToken], names: TokenNames) -> TextLogprobs:
    return TextLogprobs(
        tokens=tuple(names.text_of(token.token_id) for token in tokens),
        token_logprobs=tuple(_finite(token.logprobs.logprob) for token in tokens),
        top_logprobs=tuple(_by_text(token, names) for token in tokens),
        text_offset=tuple(token.text_offset for token in tokens),
    )


def _by_text(token: ToldToken, names: TokenNames) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for token_id, logprob in (*token.logprobs.top, (token.token_id, token.logprobs.logprob)):
        by_text.setdefault(names.text_of(token_id), _finite(logprob))
    return by_text


def _finite(logprob: float) -> float:
    return logprob if logprob > MIN_LOGPROB else MIN_LOGPROB
