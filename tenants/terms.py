"""What a tier grants and asks for: rates, budgets, prices. A tenant overrides any field. Values only.

Money is in integer micro-units; prices are micro-units per 10^6 tokens. The bounds keep every sum and
product below 2^53, so that Redis' scripts, which know doubles only, count exactly.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

ServiceClass = Literal["interactive", "batch"]
Offline = Literal["refuse", "serve"]
"""What becomes of requests while the record cannot be asked."""

MAX_PER_MIN = 10**8
MAX_BURST_S = 3600
MAX_TOKENS = 2**24
MAX_BUDGET = 10**15
MAX_PRICE = 10**9

PerMin = Annotated[int, msgspec.Meta(ge=1, le=MAX_PER_MIN)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
Micro = Annotated[int, msgspec.Meta(ge=0, le=MAX_BUDGET)]
Price = Annotated[int, msgspec.Meta(ge=0, le=MAX_PRICE)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one scope, a tenant or a key of it, may take. None: no limit."""

    requests_per_min: PerMin | None = None
    input_tokens_per_min: PerMin | None = None
    """Cached prompt tokens are given back."""
    output_tokens_per_min: PerMin | None = None
    burst_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_BURST_S)] = 60
    """So many seconds of each rate may be taken at once."""
    max_concurrency: Count | None = None
    """Queued and running requests."""
    budget_day: Micro | None = None
    """Micro-units a day, in UTC."""
    budget_month: Micro | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-units per 10^6 tokens."""

    input: Price = 0
    cached_input: Price = 0
    output: Price = 0


class Terms(Limits, frozen=True, kw_only=True):
    """Everything that a tier says."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """Share of tokens among the waiting tenants of a class; who weighs less is turned away first."""
    service_class: ServiceClass = "interactive"
    """Of requests that do not say; the highest that they may say."""
    max_queue_len: Count | None = None
    """Requests that may wait at one gateway, in both classes; None: as many as all may."""
    max_context_tokens: Tokens | None = None
    """Prompt + output of one request."""
    max_output_tokens: Tokens = 4096
    models: tuple[str, ...] | None = None
    """Names that its tenants may ask for; None: all."""
    input_price: Price = 0
    cached_input_price: Price = 0
    output_price: Price = 0
    offline: Offline = "refuse"

    @property
    def prices(self) -> Prices:
        """A cached token never costs more than one that is not: the latter's price is reserved."""
        cached_input = min(self.cached_input_price, self.input_price)
        return Prices(input=self.input_price, cached_input=cached_input, output=self.output_price)
