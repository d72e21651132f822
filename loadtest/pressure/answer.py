"""One answer as its client sees it: tokens taken in order, text and stop strings made as a gateway does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.request import FinishReason, RequestOutput, TokenLogprobs
from engine.text_stream import TextStream


@dataclass(frozen=True)
class SiblingAnswer:
    """What came of one sibling. `logprobs` are empty where they were not asked for."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    text: str
    finish: FinishReason | None
    """None: it never ended."""

    @property
    def is_cut(self) -> bool:
        """Whether it came to no end of its own."""
        return self.finish in ("abort", "error", None)


class Reader:
    """Takes one sibling's outputs. What an engine must never do is kept in `faults`."""

    def __init__(self, token_bytes: Callable[[int], bytes], stop: tuple[str, ...]) -> None:
        self._stream = TextStream(token_bytes, stop)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._text = ""
        self._finish: FinishReason | None = None
        self._has_ended = False
        self.num_preemptions = 0
        self.faults: list[str] = []

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def is_over(self) -> bool:
        """Whether the client has all that it wants, the engine's own end apart."""
        return self._finish is not None

    @property
    def has_ended(self) -> bool:
        """Whether the engine told its end."""
        return self._has_ended

    def take(self, output: RequestOutput) -> None:
        if self._has_ended:
            self.faults.append("an output after the end")
        if not self.is_over:
            self._read(output)
        if output.finish_reason is not None:
            self._has_ended = True
            self._finish = self._finish or output.finish_reason
            if output.error_code is not None:
                self.faults.append(output.error_code)
            if output.timing is not None:
                self.num_preemptions = output.timing.num_preemptions

    def _read(self, output: RequestOutput) -> None:
        if output.first_output_index != len(self._token_ids):
            self.faults.append(
                f"output {output.first_output_index} came where {len(self._token_ids)} was next"
            )
        self._token_ids += output.token_ids
        self._logprobs += output.logprobs or ()
        self._text += self._stream.push(output.token_ids)
        if self._stream.stopped:
            self._finish = "stop"
        elif output.finish_reason is not None:
            self._text += self._stream.finish()
            if self._stream.stopped:
                self._finish = "stop"

    def answer(self) -> SiblingAnswer:
        return SiblingAnswer(tuple(self._token_ids), tuple(self._logprobs), self._text, self._finish)
