"""What a client asks, and one try of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cluster.autoscaling.demand import Visit
from engine.block_hash import BlockHash, hash_blocks
from engine.config import BLOCK_SIZE
from engine.request import RequestOutput
from loadtest.record import OK, RequestRecord
from tenants.queued import Share
from tenants.service_tokens import service_tokens
from tenants.terms import Limits, ServiceClass


@dataclass(frozen=True)
class Customer:
    """A tenant, as far as a fleet is concerned."""

    tenant_id: str
    weight: int = 1
    service_class: ServiceClass = "interactive"
    limits: Limits | None = None
    """None: none, and nobody counts."""
    max_queue_len: int | None = None

    @property
    def root(self) -> BlockHash:
        """Of its prompts' chains."""
        return BlockHash(self.tenant_id.encode())

    @property
    def share(self) -> Share:
        return Share(self.tenant_id, self.weight, self.service_class)


@dataclass(frozen=True)
class Ask:
    """What a client wants to know, however often it has to try."""

    number: int
    customer: Customer
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    """So many it will get."""
    first_hashes: tuple[BlockHash, ...] = ()
    """Of the prompt's first blocks, as far as they are known already."""
    timeout_s: float = math.inf
    """Of a try: then its client hangs up."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @cached_property
    def block_hashes(self) -> tuple[BlockHash, ...]:
        parent = self.first_hashes[-1] if self.first_hashes else self.customer.root
        rest = self.prompt_token_ids[len(self.first_hashes) * BLOCK_SIZE :]
        return (*self.first_hashes, *hash_blocks(parent, rest, BLOCK_SIZE))

    def beginning(self, num_blocks: int) -> Ask:
        """Of its first blocks, so many."""
        token_ids = self.prompt_token_ids[: num_blocks * BLOCK_SIZE]
        return replace(self, prompt_token_ids=token_ids, first_hashes=self.block_hashes[:num_blocks])


@dataclass(eq=False)
class Call:
    """One try, from its client's first byte to its end. Owned by whoever works on it."""

    ask: Ask
    tries: int
    """Before this one."""
    was_told: bool
    """The client came back when it had been told to."""
    sent_at: float
    on_end: Callable[[Call], None]
    status: str | None = None
    retry_after_s: int | None = None
    reason: str = ""
    visit: Visit | None = None
    """As it was counted; None: its tenant's limits did not let it pass."""
    max_tokens: int = 0
    """As admitted."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """Blocks of the prompt that each replica claims, as looked up when it came."""
    predicted_cached_tokens: int = 0
    """At the replica that was thought to have the most."""
    turn_s: float = 0.0
    """When it left the gateway's queue."""
    replica_id: str = ""
    cached_tokens: int = 0
    token_times: list[float] = field(default_factory=list)
    ended_at: float = 0.0

    @property
    def call_id(self) -> str:
        return f"{self.ask.number}.{self.tries}"

    @property
    def input_service(self) -> float:
        """Tokens of service, as predicted."""
        uncached_tokens = self.ask.num_prompt_tokens - self.predicted_cached_tokens
        return service_tokens(uncached_tokens, self.predicted_cached_tokens)

    @property
    def is_live(self) -> bool:
        return self.status is None

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    def take(self, output: RequestOutput, now: float) -> None:
        self.token_times += [now] * len(output.token_ids)
        if output.num_cached_tokens is not None:
            self.cached_tokens = output.num_cached_tokens
        if output.finish_reason is not None:
            self.end(OK if output.finish_reason in ("stop", "length") else output.finish_reason, now)

    def end(self, status: str, now: float, *, reason: str = "", retry_after_s: int | None = None) -> None:
        self.status, self.ended_at = status, now
        self.reason, self.retry_after_s = reason, retry_after_s
        self.on_end(self)

    def record(self) -> RequestRecord:
        """Latencies count from the try's own beginning."""
        assert self.status is not None
        return RequestRecord(
            tenant=self.ask.customer.tenant_id,
            intended_at=self.sent_at,
            sent_at=self.sent_at,
            finished_at=self.ended_at,
            status=self.status,
            token_times=tuple(self.token_times),
            last_token_at=self.token_times[-1] if self.token_times else None,
            prompt_tokens=self.ask.num_prompt_tokens,
            output_tokens=len(self.token_times),
            cached_tokens=self.cached_tokens,
            replica=self.replica_id,
            reason=self.reason,
        )
