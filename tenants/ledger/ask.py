"""What a request asks of the ledger before it may run."""

from __future__ import annotations

import msgspec

from tenants.terms import Limits, Prices

MAX_EXACT = 2**53
"""What Redis' scripts, which know doubles only, count exactly."""
MAX_TIME_S = 253_402_300_799
"""Unix seconds; the end of the year 9999."""


TENANT = ""
"""Stands where a key's id would: the tenant itself."""


class Scope(msgspec.Struct, frozen=True):
    """Whose limits: the tenant's (`key_id` None), or those that one of its keys has besides."""

    key_id: str | None
    limits: Limits

    @property
    def who(self) -> str:
        return self.key_id or TENANT


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request's takes, all or none: the prompt once, and `n` answers of at most `max_tokens` each."""

    request_id: str
    tenant_id: str
    key_id: str
    model: str
    gateway_id: str
    started_at: float
    """Unix seconds, by the gateway's clock; with the id it tells requests apart for ever."""
    scopes: tuple[Scope, ...]
    prices: Prices
    prompt_tokens: int
    n: int
    max_tokens: int
    is_purse: bool = False
    """Money held in advance, and no request: none of those at once, and once renewed it is held for
    `PURSE_LEASE_S` (`tenants/offline/`)."""

    def check(self) -> None:
        """Raises ValueError, naming the field, for what cannot be counted exactly."""
        for name, least in (("prompt_tokens", 0), ("n", 1), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        completion_tokens = self.n * self.max_tokens
        raw = self.prompt_tokens * self.prices.input + completion_tokens * self.prices.output
        if max(raw, self.prompt_tokens, completion_tokens) >= MAX_EXACT:
            raise ValueError(
                f"{self.n} answers of {self.max_tokens} max_tokens cost more than can be counted"
            )
        if not 0 <= self.started_at <= MAX_TIME_S:
            raise ValueError(f"started_at must be Unix seconds, not {self.started_at}")
        if not self.key_id or any(scope.key_id not in (None, self.key_id) for scope in self.scopes):
            raise ValueError("scopes must be the tenant's, or of the key key_id")
