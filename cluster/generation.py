"""One answer in the making, as the API sees it: text goes out, usage is known at the end.

The API (`cluster/api`) asks a `Generator` to start and reads `TextDelta`s; behind it are admission,
routing, the link to a replica and the text stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from engine.request import FinishReason, SamplingParams, Timing
from tenants.tenant import Tenant


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request, in tokens. `deadline` is on the gateway's monotonic clock, in seconds."""

    request_id: str
    tenant: Tenant
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    deadline: float


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Text that is safe to send. May be empty (half a character, a possible stop string)."""

    text: str
    finish_reason: FinishReason | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Generation(Protocol):
    """A request that a replica accepted."""

    @property
    def replica_id(self) -> str: ...

    @property
    def usage(self) -> Usage:
        """So far; final once the last delta was read."""

    @property
    def timing(self) -> Timing | None:
        """Where its time went, once the last delta was read; None if the engine did not tell."""

    def deltas(self) -> AsyncIterator[TextDelta]:
        """Ends with the one delta that has a finish reason, or raises `ApiError`. Read it once."""

    async def abort(self) -> None:
        """The client has left: stop making tokens. Safe at any time, any number of times."""


class Generator(Protocol):
    async def start(self, request: GenerationRequest) -> Generation:
        """Admits, routes and submits. Raises `ApiError`; nothing stays taken then."""
