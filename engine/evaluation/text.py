"""The text that models are judged on, cut into windows of tokens.

`tale.txt` is the beginning of Charles Dickens, "A Tale of Two Cities" (1859), book I, chapters I and II.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

STORED = Path(__file__).with_name("tale.txt")


def read_text(path: Path | None = None) -> str:
    """The stored one unless another is named. Raises ValueError for what is no text."""
    path = path or STORED
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text ({error})") from None


def windows(token_ids: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """Side by side, all of that length; what is left over at the end is not used.

    Raises ValueError for a text that fills none.
    """
    found = [
        tuple(token_ids[start : start + length]) for start in range(0, len(token_ids) - length + 1, length)
    ]
    if not found:
        raise ValueError(f"the text has {len(token_ids)} tokens, at least {length} are needed")
    return found
