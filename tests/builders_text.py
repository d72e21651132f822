"""What the text of tokens is, by brute force: for tests of what streams it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def whole_text(tokens: Sequence[bytes], stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there is one: every end position, every stop."""
    text = b"".join(tokens).decode("utf-8", errors="replace")
    for end in range(1, len(text) + 1):
        starts = [end - len(one) for one in stop if text[:end].endswith(one)]
        if starts:
            return text[: min(starts)], True
    return text, False


def num_tokens_to_stop(tokens: Sequence[bytes], stop: Sequence[str]) -> int:
    """The first token count whose text, without its unfinished end, holds a stop string."""
    for count in range(len(tokens)):
        text = decoded_so_far(tokens[:count])
        if any(one in text for one in stop):
            return count
    return len(tokens)


def decoded_so_far(tokens: Sequence[bytes]) -> str:
    """Every character that no later byte can change."""
    data = b"".join(tokens)
    endings = [b"", b"A", *(bytes([more]) * 3 for more in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF))]
    decoded = [(data + ending).decode("utf-8", errors="replace") for ending in endings]
    return "".join(
        column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*decoded, strict=False))
    )
