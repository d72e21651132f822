"""One line of a spool: a settlement or an adjustment as JSON, framed with a checksum that shows what a crash
or a disk did.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from tenants.ledger.adjustment import Adjustment
from tenants.ledger.settlement import Settlement

Entry = Settlement | Adjustment
"""What a line holds."""

MAX_LINE_BYTES = 1 << 16
"""Longer than any entry: what goes on without an end of line is no line."""
_TAIL = b"}\n"
_decoders: dict[bytes, msgspec.json.Decoder[Settlement] | msgspec.json.Decoder[Adjustment]] = {
    b'{"crc32":"%08x","settlement":': msgspec.json.Decoder(Settlement),
    b'{"crc32":"%08x","adjustment":': msgspec.json.Decoder(Adjustment),
}
"""By what a line begins with. All are of one length."""
_OF_SETTLEMENT, _OF_ADJUSTMENT = _decoders
_BODY = slice(len(_OF_SETTLEMENT % 0), -len(_TAIL))


class CorruptLine(ValueError):
    """Not what was written. Says what is wrong, never the content."""


def encode(entry: Entry) -> bytes:
    head = _OF_SETTLEMENT if isinstance(entry, Settlement) else _OF_ADJUSTMENT
    return _framed(head, msgspec.json.encode(entry))


def decode(line: bytes) -> Entry:
    """What a whole `line` holds, its end included. Raises `CorruptLine`."""
    body = line[_BODY]
    for head, decoder in _decoders.items():
        if _framed(head, body) == line:
            try:
                return decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise CorruptLine("it is no settlement and no adjustment") from None
    raise CorruptLine("its checksum does not fit")


def began_at(entry: Entry) -> float:
    """Unix seconds: what it is charged to, and how long the ledger knows it, go by this."""
    return entry.started_at if isinstance(entry, Settlement) else entry.at


def told_at(entry: Entry) -> float:
    """Unix seconds, of about when it was written."""
    return entry.ended_at if isinstance(entry, Settlement) else entry.at


def name_of(entry: Entry) -> str:
    """For people."""
    if isinstance(entry, Settlement):
        return f"request {entry.request_id}"
    return f"adjustment {entry.adjustment_id}"


def _framed(head: bytes, body: bytes) -> bytes:
    return head % crc32(body) + body + _TAIL
