"""Tokens in, text out: what may be sent now, what must wait, and where a stop string ends the text.

The joined results of `push` and `finish` are the text that the whole token list gives at once: the
bytes of all tokens, decoded as UTF-8 with U+FFFD for what is no UTF-8, cut before the stop string
that completes first (of several that complete together, the one that began first).
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence

from engine.stop_matcher import StopMatcher

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """The text of one output. Owns the half character and the half stop string at its end.

    `token_bytes(id)` gives the exact bytes of a token, b"" for a control token. Raises ValueError for
    an empty stop string. Time is linear in tokens, bytes and stop strings together.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop: tuple[str, ...] = ()) -> None:
        self._token_bytes = token_bytes
        self._decoder = _new_decoder(errors="replace")
        self._matcher = StopMatcher(stop) if stop else None
        self._held: deque[str] = deque()
        self._num_characters = 0
        self._ends: deque[int] = deque()
        """Of each token whose text is not out: the number of characters with which it is."""
        self._num_tokens = 0
        self._num_discarded = 0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was completed. Nothing more is emitted then."""
        return self._stopped

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer, the one that completed the stop string included."""
        return self._num_tokens

    @property
    def num_settled_tokens(self) -> int:
        """Tokens of the answer whose text is out, or never will be."""
        return self._num_tokens - len(self._ends)

    @property
    def num_characters(self) -> int:
        """Characters read so far, sent or held: where the next token's text begins."""
        return self._num_characters

    @property
    def num_discarded(self) -> int:
        """Tokens pushed after the one that completed the stop string."""
        return self._num_discarded

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that is safe to send now: no half character, nothing that may become a stop string."""
        pieces: list[str] = []
        for position, token_id in enumerate(token_ids):
            if self._stopped:
                self._num_discarded += len(token_ids) - position
                break
            self._num_tokens += 1
            pieces.append(self._release(self._decode(token_id)))
            self._settle()
        return "".join(pieces)

    def finish(self) -> str:
        """The held tail, once, after the last push. A half character becomes U+FFFD."""
        if self._stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        if not self._stopped:
            text += "".join(self._held)
        self._held.clear()
        self._ends.clear()
        return text

    def _decode(self, token_id: int) -> str:
        text = self._decoder.decode(self._token_bytes(token_id))
        self._num_characters += len(text)
        has_begun_another = bool(self._decoder.getstate()[0])  # whatever follows, it will be one character
        self._ends.append(self._num_characters + has_begun_another)
        return text

    def _settle(self) -> None:
        if self._stopped:
            self._ends.clear()
        num_sent = self._num_characters - len(self._held)
        while self._ends and self._ends[0] <= num_sent:
            self._ends.popleft()

    def _release(self, text: str) -> str:
        if self._matcher is None:
            return text
        for character in text:
            self._held.append(character)
            matched = self._matcher.read(character)
            if matched:
                self._stopped = True
                return self._take(len(self._held) - matched)
        return self._take(len(self._held) - self._matcher.num_held)

    def _take(self, count: int) -> str:
        return "".join(self._held.popleft() for _ in range(count))
