"""Finding the first of several stop strings in text that arrives piece by piece.

An Aho-Corasick automaton over characters: each character costs amortised O(1), however long the
stop strings are, however many there are, and however often the text almost matches one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Reads characters one at a time and says how many of the last ones may belong to a stop string.

    Raises ValueError for an empty stop string, which would match before anything was said.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth: list[int] = [0]
        self._fallback: list[int] = [0]
        self._match_length: list[int] = [0]
        self._state = 0
        for text in stop:
            self._insert(text)
        self._link()

    @property
    def num_held(self) -> int:
        """Length of the longest suffix of the text so far that begins a stop string, in characters."""
        return self._depth[self._state]

    def read(self, character: str) -> int:
        """Length of the longest stop string that this character completes, or 0. Don't read on after one."""
        state = self._state
        while state and character not in self._next[state]:
            state = self._fallback[state]
        self._state = self._next[state].get(character, 0)
        return self._match_length[self._state]

    def _insert(self, text: str) -> None:
        if not text:
            raise ValueError("a stop string must not be empty")
        state = 0
        for character in text:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._fallback.append(0)
                self._match_length.append(0)
            state = self._next[state][character]
        self._match_length[state] = len(text)

    def _link(self) -> None:
        """Fallbacks by breadth first: the longest proper suffix of a state that is a state too."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                fallback = self._fallback[state]
                while fallback and character not in self._next[fallback]:
                    fallback = self._fallback[fallback]
                self._fallback[child] = self._next[fallback].get(character, 0)
                # The longest match wins, so a shorter one only fills a gap.
                self._match_length[child] = (
                    self._match_length[child] or self._match_length[self._fallback[child]]
                )
                queue.append(child)
