"""One sibling's tokens as text, each token's logprobs beside the text that it ends in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cluster.generation import TextDelta, ToldToken
from engine.request import RequestOutput
from engine.text_stream import TextStream


class SiblingText:
    """Owns a sibling's text stream and the tokens that wait for their text."""

    def __init__(self, sibling: int, token_bytes: Callable[[int], bytes], stop: tuple[str, ...]) -> None:
        self._sibling = sibling
        self._text = TextStream(token_bytes, stop)
        self._waiting: deque[ToldToken] = deque()
        self._num_told = 0

    @property
    def num_tokens(self) -> int:
        return self._text.num_tokens

    @property
    def num_discarded(self) -> int:
        """Tokens that came after the one that completed the stop string."""
        return self._text.num_discarded

    def delta(self, output: RequestOutput) -> TextDelta:
        """What `output` lets out. Read no more after a finish reason: the engine's, or a stop string's."""
        text = self._push(output)
        finish_reason = output.finish_reason
        if finish_reason is not None:
            text += self._text.finish()
        if self._text.stopped:
            finish_reason = "stop"
        return TextDelta(text, finish_reason, self._sibling, self._settled())

    def _push(self, output: RequestOutput) -> str:
        if output.logprobs is None:
            return self._text.push(output.token_ids)
        pieces: list[str] = []
        for token_id, logprobs in zip(output.token_ids, output.logprobs, strict=True):
            self._waiting.append(ToldToken(token_id, self._text.num_characters, logprobs))
            pieces.append(self._text.push((token_id,)))
        return "".join(pieces)

    def _settled(self) -> tuple[ToldToken, ...]:
        if not self._waiting:
            return ()
        count = self._text.num_settled_tokens - self._num_told
        self._num_told += count
        return tuple(self._waiting.popleft() for _ in range(count))
