"""How a request ended: the one line that spool, ledger, usage and export all come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

import msgspec

from tenants.ledger.ask import MAX_EXACT, MAX_TIME_S, Ask
from tenants.ledger.money import cost

if TYPE_CHECKING:
    from tenants.ledger.reservation import ReservedAsk

Outcome = Literal["finished", "left", "failed", "unserved", "reaped"]
"""`left`: by its client or its deadline, and paid for. `failed`: by our fault, tokens told, free of charge.
`unserved`: it never ran, and everything is given back, the request itself too. `reaped`: its gateway died;
tokens as its last renewal told, until the gateway's own line corrects them."""
FREE_OF_CHARGE: frozenset[Outcome] = frozenset({"failed", "unserved"})


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """`request_id` and `started_at` are those of its `Ask`; the tokens are those that its client got."""

    request_id: str
    tenant_id: str
    key_id: str
    model: str
    gateway_id: str
    started_at: float
    ended_at: float
    outcome: Outcome
    n: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """Of all `n` answers."""
    cost: int
    """Micro-units."""

    @classmethod
    def of(
        cls,
        asked: Ask | ReservedAsk,
        *,
        ended_at: float,
        outcome: Outcome,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        completion_tokens: int = 0,
    ) -> Self:
        """What was asked, as it ended, and what that costs."""
        tokens = {
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "completion_tokens": completion_tokens,
        }
        return cls(
            request_id=asked.request_id,
            tenant_id=asked.tenant_id,
            key_id=asked.key_id,
            model=asked.model,
            gateway_id=asked.gateway_id,
            started_at=asked.started_at,
            ended_at=ended_at,
            outcome=outcome,
            n=asked.n,
            cost=0 if outcome in FREE_OF_CHARGE else cost(asked.prices, **tokens),
            **tokens,
        )

    @property
    def hour(self) -> int:
        """Of `started_at`, in hours since the epoch: with the id it tells settlements apart."""
        return int(self.started_at // 3600)

    @property
    def took(self) -> tuple[int, int, int]:
        """Requests, input tokens and output tokens that its limits are charged in the end."""
        if self.outcome == "unserved":
            return 0, 0, 0
        return 1, self.prompt_tokens - self.cached_tokens, self.completion_tokens

    def check(self) -> None:
        """Raises ValueError, naming the field, for numbers that no request has."""
        if not 0 <= self.started_at <= MAX_TIME_S:
            raise ValueError(f"started_at must be Unix seconds, not {self.started_at}")
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "cost"):
            if not 0 <= getattr(self, name) < MAX_EXACT:
                raise ValueError(f"{name} of a settlement must be in 0 … 2^53 - 1, not {getattr(self, name)}")
        if self.cached_tokens > self.prompt_tokens:
            raise ValueError(f"cached_tokens {self.cached_tokens} are more than the prompt has")
        if self.n < 1:
            raise ValueError(f"n of a settlement must be at least 1, not {self.n}")


class Progress(msgspec.Struct, frozen=True):
    """How far a running request is: what it would be settled at if its gateway died."""

    tenant_id: str
    request_id: str
    cached_tokens: int
    completion_tokens: int
