"""The one Redis round trip of a request: everything that is asked before it is routed.

Owns the request's commands in it: whether the record is whole, the takes from its tenant's limits and budget,
and what the prefix index claims of the prompt. Requests of one turn of the loop share a trip. An index that
fails alone costs its claims and nothing else.
While the record cannot be asked, this gateway decides by its own share (`tenants/offline/`) and requests
are routed by load; each such decision is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError, RedisError

from cluster.api.auth import store_unavailable
from cluster.api.refusals import refusal, unpaid
from cluster.books import Books
from cluster.generation import GenerationRequest
from cluster.index.prefix_index import IndexUnavailable
from cluster.index.redis_index import RedisPrefixIndex
from cluster.reservation import Reservation
from tenants.bounded import bounded
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused, Standing
from tenants.ledger.redis_ledger import RedisLedger
from tenants.redis_batch import RedisBatch
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_trouble import unavailable
from tenants.reseed import EPOCH_KEY
from tenants.store import CorruptRecord, StoreUnavailable, Trouble
from tenants.terms import Terms

log = logging.getLogger("headrace.gateway")


class Lookup(NamedTuple):
    """What is asked of the prefix index: one revision's chain of the prompt."""

    root: bytes
    block_hashes: Sequence[bytes]
    incarnations: Sequence[int]
    """Replicas of this revision that can take work."""


class Admitted(NamedTuple):
    reservation: Reservation
    claims: Mapping[int, int]
    """Blocks of the prompt's beginning by incarnation, as the index claims."""


class Health(Protocol):
    """Whether the record can be asked, as this process sees it."""

    @property
    def trouble(self) -> Trouble | None:
        """Why it is not asked at the moment; None: it is."""

    def failed(self, trouble: Trouble) -> None: ...


class Offline(Protocol):
    async def reserve(self, ask: Ask, terms: Terms) -> Granted | Refused:
        """Raises `StoreUnavailable` for whoever is not served without the record."""

    def saw(self, ask: Ask, terms: Terms, standing: Standing) -> None:
        """The record answered `ask`."""


class AdmissionObserver(Protocol):
    """What is counted of admissions; `cluster/tenant_metrics.py` does."""

    def count_granted(self, tenant_id: str, granted: Granted) -> None: ...

    def count_refused(self, tenant_id: str, refused: Refused) -> None: ...

    def count_offline(self, trouble: Trouble) -> None: ...


class Who(NamedTuple):
    """What all asks of one gateway have in common."""

    gateway_id: str
    model: str
    wall_clock: Callable[[], float]


class Admission:
    """`on_lookup(is_ok)` is called for every request that asked the index."""

    def __init__(
        self,
        client: Redis,
        ledger: RedisLedger,
        index: RedisPrefixIndex,
        health: Health,
        offline: Offline,
        books: Books,
        who: Who,
        observer: AdmissionObserver,
        on_lookup: Callable[[bool], None] = lambda is_ok: None,
    ) -> None:
        self._batch = RedisBatch(client)
        self._ledger = ledger
        self._index = index
        self._health = health
        self._offline = offline
        self._books = books
        self._who = who
        self._observer = observer
        self._on_lookup = on_lookup

    async def admit(self, request: GenerationRequest, lookups: Sequence[Lookup] = ()) -> Admitted:
        """Raises `ApiError` 400, 402, 429 or 503; nothing stays taken then."""
        ask = self._ask_of(request)
        answer, claims = await self._decide(ask, request.account.terms, lookups)
        if isinstance(answer, Granted) and answer.max_tokens < request.sampling.min_tokens:
            self._books.give_back(ask)
            answer = unpaid(answer.standing)
        if isinstance(answer, Refused):
            self._observer.count_refused(ask.tenant_id, answer)
            raise refusal(answer)
        self._observer.count_granted(ask.tenant_id, answer)
        return Admitted(self._books.open(ask, answer), claims)

    def _ask_of(self, request: GenerationRequest) -> Ask:
        key, tenant, terms = request.account
        scopes = [Scope(None, terms)]
        if key.limits is not None:
            scopes.append(Scope(key.key_id, key.limits))
        return Ask(
            request_id=request.request_id,
            tenant_id=tenant.tenant_id,
            key_id=key.key_id,
            model=self._who.model,
            gateway_id=self._who.gateway_id,
            started_at=self._who.wall_clock(),
            scopes=tuple(scopes),
            prices=terms.prices,
            prompt_tokens=len(request.prompt_token_ids),
            n=request.n,
            max_tokens=request.sampling.max_tokens,
        )

    async def _decide(
        self, ask: Ask, terms: Terms, lookups: Sequence[Lookup]
    ) -> tuple[Granted | Refused, Mapping[int, int]]:
        trouble = self._health.trouble
        if trouble is not None:
            return await self._decide_offline(ask, terms, trouble), {}
        try:
            return await self._decide_by_record(ask, terms, lookups)
        except CorruptRecord as error:  # its tenant's trouble alone: the record answers all others
            log.error("%s", error)
            self._books.give_back(ask)
            raise store_unavailable() from None
        except StoreUnavailable as error:
            self._health.failed(error.trouble)
            if lookups:
                self._on_lookup(False)
            answer = await self._decide_offline(ask, terms, error.trouble, may_have_taken=True)
            return answer, {}
        except BaseException:
            self._books.give_back(ask)
            raise

    async def _decide_by_record(
        self, ask: Ask, terms: Terms, lookups: Sequence[Lookup]
    ) -> tuple[Granted | Refused, Mapping[int, int]]:
        epoch, reserved, _, *claims = await self._round_trip(ask, lookups)
        answer = self._ledger.read_reserve(ask, reserved)
        if isinstance(epoch, RedisError):
            raise unavailable(epoch, EPOCH_KEY)
        if epoch is None:
            raise StoreUnavailable("Redis came back empty", "empty")
        self._offline.saw(ask, terms, answer.standing)
        return answer, self._claims(claims)

    async def _decide_offline(
        self, ask: Ask, terms: Terms, trouble: Trouble, *, may_have_taken: bool = False
    ) -> Granted | Refused:
        """What a record whose answer was not heard may have taken is the same request's, or given back."""
        self._observer.count_offline(trouble)
        try:
            answer = await self._offline.reserve(ask, terms)
        except StoreUnavailable:
            if may_have_taken:
                self._books.give_back(ask)
            raise store_unavailable() from None
        if may_have_taken and isinstance(answer, Refused):
            self._books.give_back(ask)
        return answer

    async def _round_trip(self, ask: Ask, lookups: Sequence[Lookup]) -> list[object]:
        """One, and two more if Redis forgot the script, which took nothing then."""
        queue = partial(self._queue, ask, lookups)
        try:
            async with bounded(CALL_TIMEOUT_S):
                replies = await self._batch.ask(queue)
                if isinstance(replies[1], NoScriptError):
                    await self._ledger.load()
                    replies = await self._batch.ask(queue)
                return replies
        except TimeoutError as error:
            raise unavailable(error, "") from None

    def _queue(self, ask: Ask, lookups: Sequence[Lookup], pipeline: Pipeline) -> None:
        pipeline.get(EPOCH_KEY)
        self._ledger.queue_reserve(pipeline, ask)
        self._ledger.queue_watch(pipeline, ask.tenant_id)
        for lookup in lookups:
            self._index.queue_look_up(pipeline, *lookup)

    def _claims(self, replies: Sequence[object]) -> Mapping[int, int]:
        claims: dict[int, int] = {}
        try:
            for reply in replies:
                claims |= self._index.read_look_up(reply)
        except IndexUnavailable:
            self._on_lookup(False)
        else:
            if replies:
                self._on_lookup(True)
        return claims
