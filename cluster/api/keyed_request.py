"""A request that its client named by a key: whether it is to be answered, and what is kept of its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cluster.api.auth import store_unavailable
from cluster.api.draft import Draft
from cluster.api.errors import ApiError, deadline_exceeded, internal_error
from cluster.api.recording import Recording
from cluster.api.request_context import RequestContext
from cluster.api.unexpected import log_unexpected
from cluster.api.waiting import end_all, unless
from tenants.outcomes.outcome import (
    RENEW_EVERY_S,
    Begun,
    Finished,
    Found,
    InProgress,
    NoRoom,
    Reused,
    StoredOutcome,
)
from tenants.outcomes.sealing import Sealer
from tenants.store import CorruptRecord, StoreUnavailable

MAX_RETRY_S = 30.0

log = logging.getLogger("headrace.api")


class KeyedRequest:
    """Owns the key while it is answered: as long as its lease is renewed, nobody else answers it."""

    def __init__(self, context: RequestContext, route: str, key: str, body: bytes) -> None:
        self._context = context
        self._services = context.services
        self._store = context.services.outcomes
        self._count = context.services.telemetry.tenants.count_keyed
        self._sealer = Sealer(context.services.secret)
        self._mark = self._sealer.mark(context.account.tenant, route, key, body)
        self._owner = context.request_id

    async def begin(self) -> StoredOutcome | None:
        """The outcome that is there; None: it is to be answered. Raises `ApiError` 409, 422 or 503."""
        try:
            found = await self._store.begin(self._mark, self._owner)
            outcome = self._sealer.open(self._mark, found.sealed) if isinstance(found, Finished) else None
        except StoreUnavailable as error:
            self._count("refused")
            if isinstance(error, CorruptRecord):
                log.error("%s", error)
            raise store_unavailable() from None
        if outcome is not None:
            self._count("replayed")
        elif not isinstance(found, Begun):
            raise self._refusal(found)
        return outcome

    async def answer(self, recording: Recording, make: Callable[[], Awaitable[Draft]]) -> None:
        """Records what `make` drafts, to its end or its deadline. Runs whether or not its client stays."""
        error: ApiError | None = internal_error()
        lease = asyncio.create_task(self._keep_lease())
        try:
            with self._services.telemetry.in_flight():
                error = await self._recorded(recording, make)
        finally:
            await end_all(lease)
            recording.close(error)

    async def _recorded(self, recording: Recording, make: Callable[[], Awaitable[Draft]]) -> ApiError | None:
        """What it ended with. The key is settled before its client hears of the end: it may ask at once."""
        too_late = self._services.sleep(self._context.remaining_s), deadline_exceeded()
        try:
            await self._finish(await unless(recording.record(make), too_late))
        except ApiError as error:
            await self._free()
            return error
        except Exception as error:
            log_unexpected(error, self._context.request_id)
            await self._free()
            return internal_error()
        return None

    async def _keep_lease(self) -> None:
        """Until it is lost, which `_finish` will tell."""
        is_mine = True
        while is_mine:
            await self._services.sleep(RENEW_EVERY_S)
            with suppress(StoreUnavailable):
                is_mine = await self._store.renew(self._mark, self._owner)

    async def _finish(self, outcome: StoredOutcome | None) -> None:
        sealed = None if outcome is None else self._sealer.seal(self._mark, outcome)
        try:
            self._count(await self._store.finish(self._mark, self._owner, sealed) or "lost")
        except StoreUnavailable:
            self._count("unstored")

    async def _free(self) -> None:
        """Without Redis the lease runs out."""
        self._count("freed")
        with suppress(StoreUnavailable):
            await self._store.fail(self._mark, self._owner)

    def _refusal(self, found: Found) -> ApiError:
        if isinstance(found, Reused):
            self._count("reused")
            message = "This Idempotency-Key was used with another body: a new request needs a new key."
            return ApiError(422, "idempotency_key_reused", message, param="idempotency-key")
        if isinstance(found, InProgress):
            self._count("in_progress")
            message = "The request with this Idempotency-Key is still being answered; ask again."
            return ApiError(409, "idempotency_in_progress", message, retry_after_s=_retry_s(found))
        self._count("gone")
        headers = {"x-should-retry": "false"}  # clients of OpenAI's would repeat a 409
        if isinstance(found, NoRoom):
            message = "This request was answered, and as many answers are kept for its tenant as may be."
            return ApiError(409, "outcome_not_kept", message, headers=headers)
        message = "This request was answered, and its answer was too large to be kept and sent again."
        return ApiError(409, "outcome_too_large", message, headers=headers)


def _retry_s(found: InProgress) -> float:
    """As long as it has been running: nobody knows how long it will, and so few questions are asked in vain,
    and the last comes before twice the time is over.
    """
    return min(MAX_RETRY_S, max(1.0, found.running_s))
