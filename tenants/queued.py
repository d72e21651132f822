"""A request as the fair queue knows it: whose it is and what its input costs. Values only."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tenants.service_tokens import service_tokens
from tenants.terms import ServiceClass


class Share(NamedTuple):
    """On which terms a tenant's requests of one class share with others."""

    tenant_id: str
    weight: int
    """At least 1."""
    service_class: ServiceClass

    @property
    def standing(self) -> tuple[bool, int]:
        """Who stands lower is shed first: batch before interactive, then the lighter weight."""
        return (self.service_class == "interactive", self.weight)


class Queued(NamedTuple):
    entry_id: str
    share: Share
    uncached_tokens: int
    cached_tokens: int = 0
    """Longest cached prefix of its prompt on any replica, as the index claims."""
    num_siblings: int = 1
    """Answers that it asks for: each takes a seat of a replica."""

    @property
    def input_service(self) -> float:
        """Tokens of service, charged when it leaves the queue."""
        return service_tokens(self.uncached_tokens, self.cached_tokens)


Fits = Callable[[Queued], bool]
"""Whether there is a place for an entry now."""


def anyone(entry: Queued) -> bool:
    return True


class Work(NamedTuple):
    """An amount of what waits."""

    tokens: float = 0.0
    """Of service, of its input."""
    seats: float = 0.0
    """For each sibling of each request one."""

    def first(self, tokens: float) -> Work:
        """So many tokens of it, or all of it if there are no more."""
        if tokens >= self.tokens:
            return self
        return Work(tokens, self.seats * tokens / self.tokens)

    def plus(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.seats + other.seats)
