"""One line of a spool: a settlement as JSON, framed with a checksum that shows what a crash or a disk did."""

from __future__ import annotations

from zlib import crc32

import msgspec

from tenants.ledger.settlement import Settlement

MAX_LINE_BYTES = 1 << 16
"""Longer than any settlement: what goes on without an end of line is no line."""
_HEAD = b'{"crc32":"%08x","settlement":'
_TAIL = b"}\n"
_BODY = slice(len(_HEAD % 0), -len(_TAIL))
_decoder = msgspec.json.Decoder(Settlement)


class CorruptLine(ValueError):
    """Not what was written. Says what is wrong, never the content."""


def encode(settlement: Settlement) -> bytes:
    return _framed(msgspec.json.encode(settlement))


def decode(line: bytes) -> Settlement:
    """The settlement of a whole `line`, its end included. Raises `CorruptLine`."""
    body = line[_BODY]
    if _framed(body) != line:
        raise CorruptLine("its checksum does not fit")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CorruptLine("it is no settlement") from None


def _framed(body: bytes) -> bytes:
    return _HEAD % crc32(body) + body + _TAIL
