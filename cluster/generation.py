"""One answer in the making, as the API sees it: text goes out, usage is known at the end.

The API (`cluster/api`) asks a `Generator` to start and reads `TextDelta`s; behind it are admission,
routing, the link to a replica and the text stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from engine.prefix_stats import PrefixStats
from engine.request import FinishReason, SamplingParams, Timing, TokenLogprobs
from tenants.ledger.grant import Standing
from tenants.ledger.settlement import Outcome
from tenants.queued import Share
from tenants.store import Account
from tenants.terms import ServiceClass

PRIORITY: Mapping[ServiceClass, int] = {"interactive": 0, "batch": 1}
"""Of `engine.request.Request`."""
WARMING = 2
"""The priority of what nobody asked for (`warming_plan.py`): after all else, and in no account."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request, in tokens. `arrived` and `deadline`: seconds on the gateway's monotonic clock.

    `n` answers are made to the one prompt: siblings 0 … n − 1. `sampling.max_tokens` is what context and
    terms allow; what the budget pays for may be less.
    """

    request_id: str
    account: Account
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    stop: tuple[str, ...] = ()
    arrived: float = 0.0
    deadline: float
    service_class: ServiceClass = "interactive"
    is_return: bool = False
    """The client says that it asks again."""

    @property
    def share(self) -> Share:
        return Share(self.account.tenant.tenant_id, self.account.terms.weight, self.service_class)


class ToldToken(msgspec.Struct, frozen=True, gc=False):
    """An output token whose logprobs were asked for."""

    token_id: int
    text_offset: int
    """Characters before its text, those that a stop string cut off among them; of a part of a character,
    those before that character."""
    logprobs: TokenLogprobs


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Text of one sibling that is safe to send.

    May be empty (half a character, a possible stop string). `tokens` are those whose text ends in
    this delta; the finish brings all that are left, so that each counted token is told once.
    """

    text: str
    finish_reason: FinishReason | None = None
    sibling: int = 0
    tokens: tuple[ToldToken, ...] = ()
    """Only where logprobs were asked for."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The prompt counts once; completion tokens are those of all siblings."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    lookup: PrefixStats | None = None
    """Why not more was cached; None until the replica tells, and if it was told before."""


class Generation(Protocol):
    """A request that a replica accepted."""

    @property
    def replica_id(self) -> str: ...

    @property
    def max_tokens(self) -> int:
        """Of each answer, as admitted."""

    @property
    def standing(self) -> Standing:
        """The tenant's limits, as they stood when this was admitted."""

    @property
    def waited_s(self) -> float:
        """At the gateway, until its turn came."""

    @property
    def usage(self) -> Usage:
        """So far; final once the last delta was read."""

    @property
    def timing(self) -> Timing | None:
        """Where the time of the sibling that ended last went; None if the engine did not tell."""

    def deltas(self) -> AsyncIterator[TextDelta]:
        """Ends once each sibling had its delta with a finish reason, or raises `ApiError`. Read it once."""

    def end(self, outcome: Outcome) -> None:
        """Stops what still makes tokens and settles what was taken. Once counts; safe at any time."""


class Generator(Protocol):
    async def start(self, request: GenerationRequest) -> Generation:
        """Admits, routes and submits. Raises `ApiError`; nothing stays taken then."""
