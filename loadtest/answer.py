"""One answer of the API being read: its texts' arrivals, its usage, and whether it was whole."""

from __future__ import annotations

import msgspec

from loadtest.record import OK

_DONE = b"[DONE]"
_MAX_CODE_CHARS = 64


class _CachedTokens(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None = None


class _Text(msgspec.Struct, gc=False):
    content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        return (
            self.text or (self.delta and self.delta.content) or (self.message and self.message.content) or ""
        )


class _Error(msgspec.Struct, gc=False):
    code: str | int | None = None
    message: str = ""


class _Body(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Body)


class AnswerReader:
    """Told each event of a stream, or the one body of an answer that is not streamed.

    `expected_tokens`: the exact number of output tokens that was asked for; None if any will do.
    """

    def __init__(self, expected_tokens: int | None) -> None:
        self._expected_tokens = expected_tokens
        self._usage: _Usage | None = None
        self._has_finished = False
        self._is_done = False
        self._failure: str | None = None
        self.reason = ""
        self.replica = ""
        self._pieces: list[str] = []
        self.token_times: list[float] = []
        self.last_token_at: float | None = None

    def on_event(self, data: bytes, now: float) -> None:
        """One event's data, which arrived at `now`."""
        if data == _DONE:
            self._is_done = True
            return
        had_finished = self._has_finished
        if self._read(data):
            self.token_times.append(now)
        if self._has_finished and not had_finished:
            self.last_token_at = now

    def on_body(self, data: bytes) -> None:
        """The whole answer at once, or a refusal; when its tokens were made, nobody knows."""
        self._read(data)
        self._is_done = True

    def _read(self, data: bytes) -> bool:
        """Whether it held text."""
        try:
            body = _decoder.decode(data)
        except (msgspec.DecodeError, RecursionError):
            self._failure = "garbled"
            return False
        if body.error is not None:
            self._failure = f"error {body.error.code}"[:_MAX_CODE_CHARS]
            self.reason = body.error.message
        self._usage = body.usage or self._usage
        self._has_finished |= any(choice.finish_reason for choice in body.choices)
        pieces = [choice.piece for choice in body.choices]
        self._pieces += pieces
        return any(pieces)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def status(self) -> str:
        """`OK` if it was whole, counted, and as long as asked; else what was wrong."""
        if self._failure is not None:
            return self._failure
        if not (self._is_done and self._has_finished):
            return "cut off"
        if self._usage is None:
            return "no usage"
        if self._expected_tokens not in (None, self.output_tokens):
            return "wrong length"
        return OK

    @property
    def prompt_tokens(self) -> int:
        return self._usage.prompt_tokens if self._usage else 0

    @property
    def output_tokens(self) -> int:
        return self._usage.completion_tokens if self._usage else 0

    @property
    def cached_tokens(self) -> int:
        details = self._usage.prompt_tokens_details if self._usage else None
        return (details and details.cached_tokens) or 0
