"""The gateway's `Generator`: admit, route, submit."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from cluster.admission import Admitted, Lookup
from cluster.api.errors import ApiError, no_capacity, tenant_disabled
from cluster.autoscaling.demand import DemandMeter, Visit
from cluster.cluster_generation import ClusterGeneration, Observer
from cluster.dispatcher import Dispatcher
from cluster.generation import GenerationRequest
from cluster.index.prefix_index import INDEX_EVERY
from cluster.link import Hello
from cluster.links import Links
from cluster.prompt_chains import PromptChains
from cluster.public_prefixes import NO_PREFIXES, PublicPrefixes
from cluster.routed_request import RoutedRequest
from cluster.running import Running
from cluster.sibling_text import SiblingText
from cluster.submission import Part
from cluster.waiting.arrival import Arrival
from cluster.waiting_room import WaitingRoom
from tenants.tenant import cache_salt

LONG_PROMPT_TOKENS = 4096
"""Hashing more than that would hold the event loop for longer than a millisecond."""


class Admits(Protocol):
    async def admit(self, request: GenerationRequest, lookups: Sequence[Lookup]) -> Admitted: ...


class ClusterGenerator:
    """Owns what is counted of demand. Of requests it keeps nothing: links own what runs, Redis owns who may.

    `hasher` takes long prompts; `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        links: Links,
        dispatcher: Dispatcher,
        room: WaitingRoom,
        admission: Admits,
        token_bytes: Callable[[int], bytes],
        secret: bytes,
        hasher: Executor,
        observer: Observer,
        running: Running,
        public: PublicPrefixes = NO_PREFIXES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._dispatcher = dispatcher
        self._room = room
        self._admission = admission
        self._token_bytes = token_bytes
        self._secret = secret
        self._hasher = hasher
        self._observer = observer
        self._running = running
        self._public = public
        self.demand = DemandMeter()
        self._clock = clock
        self.is_admitting = True

    def stop_admitting(self) -> None:
        """New requests are refused from now on; what runs goes on."""
        self.is_admitting = False

    async def start(self, request: GenerationRequest) -> ClusterGeneration:
        if not self.is_admitting:
            raise no_capacity("This gateway is ending; try again.")
        salt = cache_salt(self._secret, request.account.tenant.tenant_id)
        chains = PromptChains(request.prompt_token_ids, salt, self._public)
        hellos = self._links.hellos()
        if len(request.prompt_token_ids) <= LONG_PROMPT_TOKENS:
            chains.prepare(hellos)
        else:
            await asyncio.get_running_loop().run_in_executor(self._hasher, chains.prepare, hellos)
        arrival = self._room.arrival(request, cached_tokens=0)
        request = self._let_in(request, arrival)
        reservation, claims = await self._admission.admit(request, _lookups(chains, hellos))
        run = self._running.entered(request.account.tenant)
        run.on_ended = partial(self._room.dismiss, request.request_id, tenant_disabled)
        arrival = _cached(arrival, claims, hellos)
        visit = self.demand.arrived(arrival, request.n * reservation.max_tokens, self._clock())
        try:
            routed = RoutedRequest(_within(request, reservation.max_tokens), chains, claims)
            inbox = await self._dispatcher.submit(routed, Part(n=request.n))
            texts = [SiblingText(sibling, self._token_bytes, request.stop) for sibling in range(request.n)]
            return ClusterGeneration(
                self._links,
                self._dispatcher,
                self._room,
                routed,
                inbox,
                texts,
                self._observer,
                reservation,
                run,
                self.demand,
            )
        except BaseException as error:
            self._turned_away(visit, error)
            reservation.settle("unserved")
            run.leave()
            raise

    def _let_in(self, request: GenerationRequest, arrival: Arrival) -> GenerationRequest:
        """As long as it may be now. Raises `ApiError` if it would not be in time: nothing is taken then."""
        max_tokens = self._room.max_tokens(request)
        try:
            self._room.check(arrival)
        except ApiError as error:
            self._turned_away(self.demand.arrived(arrival, request.n * max_tokens, self._clock()), error)
            raise
        return _within(request, max_tokens)

    def _turned_away(self, visit: Visit, error: BaseException) -> None:
        """If it was: what is the client's fault is not tried again."""
        if isinstance(error, ApiError) and error.status in (429, 503):
            is_shed = error.status == 503
            self.demand.turned_away(visit, self._clock(), error.retry_after_s, is_shed=is_shed)


def _cached(arrival: Arrival, claims: Mapping[int, int], hellos: Sequence[Hello]) -> Arrival:
    """As at the replica that has most of it."""
    num_prompt_tokens = arrival.uncached_tokens + arrival.cached_tokens
    cached = (hello.block_size * claims.get(hello.incarnation, 0) for hello in hellos)
    num_cached = min(max(cached, default=0), num_prompt_tokens - 1)
    return dataclasses.replace(
        arrival, uncached_tokens=num_prompt_tokens - num_cached, cached_tokens=num_cached
    )


def _within(request: GenerationRequest, max_tokens: int) -> GenerationRequest:
    """As the budget pays for it."""
    if max_tokens == request.sampling.max_tokens:
        return request
    return replace(request, sampling=replace(request.sampling, max_tokens=max_tokens))


def _lookups(chains: PromptChains, hellos: Sequence[Hello]) -> list[Lookup]:
    """One for each live revision; none for a prompt that has no indexed block."""
    by_root: dict[bytes, list[Hello]] = {}
    for hello in hellos:
        by_root.setdefault(hello.hash_root, []).append(hello)
    lookups = []
    for holders in by_root.values():
        chain = chains.of(holders[0])
        if len(chain.block_hashes) >= INDEX_EVERY:
            incarnations = tuple(hello.incarnation for hello in holders)
            lookups.append(Lookup(chain.root, chain.block_hashes, incarnations))
    return lookups
