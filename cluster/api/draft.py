"""An answer that is checked and not begun, before anybody says how it is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draft:
    """Reading `pieces` of the body makes the answer, leaving them before their end aborts it."""

    pieces: AsyncGenerator[bytes]
    """None of them empty; of an answer that is not streamed, one. Reading may raise `ApiError`."""
    headers_now: Callable[[], dict[str, str]]
    """Those that are known by now; after the last piece, all."""
    is_stream: bool
