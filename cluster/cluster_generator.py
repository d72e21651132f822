"""The gateway's `Generator`: admit, route, submit, and turn a replica's tokens into text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Protocol

from cluster.api.errors import ApiError, bad_request, no_capacity
from cluster.generation import GenerationRequest, TextDelta, Usage
from cluster.link import LinkDown, SubmitReply
from cluster.links import Links
from cluster.routing import choose_replica
from cluster.sibling_text import SiblingText
from cluster.token_inbox import TokenInbox
from engine.block_hash import BlockHash, hash_blocks, tenant_root
from engine.prefix_stats import PrefixStats
from engine.request import Request, RequestOutput, Timing
from tenants.tenant import Tenant, cache_salt

MAX_SUBMITS = 3
"""A submit that finds its replica gone tries another one, twice; never the same one again."""


class Admits(Protocol):
    async def admit(self, tenant: Tenant) -> Tenant: ...


class ClusterGenerator:
    """Stateless between requests: links own what runs, Redis owns who may."""

    def __init__(
        self,
        links: Links,
        admission: Admits,
        token_bytes: Callable[[int], bytes],
        secret: bytes,
        rng: Random,
        on_discarded: Callable[[int], None],
    ) -> None:
        self._links = links
        self._admission = admission
        self._token_bytes = token_bytes
        self._secret = secret
        self._rng = rng
        self._on_discarded = on_discarded

    async def start(self, request: GenerationRequest) -> ClusterGeneration:
        tenant = await self._admission.admit(request.tenant)
        salt = cache_salt(self._secret, tenant.tenant_id)
        chains: dict[bytes, tuple[BlockHash, ...]] = {}
        tried: set[str] = set()
        for attempt in range(MAX_SUBMITS):
            replica_id = self._choose(request, tried)
            tried.add(replica_id)
            try:
                asked = self._request_for(replica_id, request, salt, attempt, chains)
                answer = await self._links.submit(replica_id, asked, len(request.prompt_token_ids))
            except LinkDown:
                continue
            if isinstance(answer, SubmitReply):
                raise _refusal(answer)
            texts = [SiblingText(sibling, self._token_bytes, request.stop) for sibling in range(request.n)]
            return ClusterGeneration(self._links, answer, texts, request, self._on_discarded)
        raise no_capacity("No replica could take the request; try again shortly.")

    def _choose(self, request: GenerationRequest, tried: set[str]) -> str:
        candidates = [load for load in self._links.candidates() if load.replica_id not in tried]
        chosen = choose_replica(candidates, len(request.prompt_token_ids), self._rng)
        if chosen is None:
            raise no_capacity("No replica can serve at the moment; try again shortly.")
        return chosen

    def _request_for(
        self,
        replica_id: str,
        request: GenerationRequest,
        salt: bytes,
        attempt: int,
        chains: dict[bytes, tuple[BlockHash, ...]],
    ) -> Request:
        """The prompt is hashed once a live revision, with the root that the replica's hello names."""
        hello = self._links.hello(replica_id)
        root = tenant_root(hello.hash_root, salt)
        if root not in chains:
            chains[root] = hash_blocks(root, request.prompt_token_ids, hello.block_size)
        return Request(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling=request.sampling,
            hash_root=root,
            block_hashes=chains[root],
            attempt=attempt,
            n=request.n,
        )


def _refusal(reply: SubmitReply) -> ApiError:
    """What fits the context and not the pool is for the client to ask less of."""
    param = "max_tokens" if reply.code == "limit_never_satisfiable" else None
    message = reply.message or "The request was refused."
    return bad_request(message, param=param, code=reply.code or "refused")


class ClusterGeneration:
    """One running request of this gateway."""

    def __init__(
        self,
        links: Links,
        inbox: TokenInbox,
        texts: list[SiblingText],
        request: GenerationRequest,
        on_discarded: Callable[[int], None],
    ) -> None:
        self._links = links
        self._inbox = inbox
        self._texts = texts
        self._request = request
        self._on_discarded = on_discarded
        self._num_running = len(texts)
        self._cached_tokens: int | None = None
        self._lookup: PrefixStats | None = None
        self.timing: Timing | None = None

    @property
    def replica_id(self) -> str:
        return self._inbox.replica_id

    @property
    def usage(self) -> Usage:
        num_tokens = sum(text.num_tokens for text in self._texts)
        num_prompt_tokens = len(self._request.prompt_token_ids)
        return Usage(num_prompt_tokens, num_tokens, self._cached_tokens or 0, self._lookup)

    async def deltas(self) -> AsyncIterator[TextDelta]:
        while self._num_running:
            try:
                output = await self._inbox.get()
            except LinkDown:
                raise ApiError(
                    500, "replica_lost", "The replica that served this request was lost."
                ) from None
            yield self._delta(output)

    def _delta(self, output: RequestOutput) -> TextDelta:
        if self._cached_tokens is None:
            self._cached_tokens, self._lookup = output.num_cached_tokens, output.lookup
        if output.timing is not None:
            self.timing = output.timing
        if output.finish_reason in ("error", "abort"):
            raise ApiError(500, output.error_code or "aborted", "The engine could not finish this request.")
        text = self._texts[output.sibling]
        delta = text.delta(output)
        if delta.finish_reason is not None:
            self._num_running -= 1
            self._on_discarded(text.num_discarded)
            self._links.abort(self._inbox, output.sibling)  # a stop string: the engine knows nothing of it
        return delta

    async def abort(self) -> None:
        self._links.abort(self._inbox)
