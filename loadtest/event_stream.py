"""Server-sent events, as bytes arrive: the data of each event, however the network cut it."""

from __future__ import annotations


class EventStream:
    """Understands `data` lines and comments, ended by LF or CRLF; ignores all other fields."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
