"""The two ways in which vocabularies write the bytes of a token as text."""

from __future__ import annotations

import re

SPACE_MARK = "\u2581"
"""SentencePiece's stand-in for a space."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_characters() -> dict[str, int]:
    """The printable stand-ins that byte-level vocabularies write bytes with: character → byte.

    Bytes that are printable in Latin-1 stand for themselves, the others take U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_characters()


def byte_level_bytes(token: str) -> bytes:
    """Raises KeyError for a character outside the byte-level alphabet."""
    return bytes(BYTE_OF_CHARACTER[character] for character in token)


def byte_token(token: str) -> int | None:
    """The byte that a token such as `<0x0A>` stands for."""
    match = _BYTE_TOKEN.fullmatch(token)
    return None if match is None else int(match[1], 16)


def sentencepiece_bytes(token: str) -> bytes:
    """Raises UnicodeEncodeError for text that is no UTF-8."""
    byte = byte_token(token)
    return token.replace(SPACE_MARK, " ").encode() if byte is None else bytes([byte])
