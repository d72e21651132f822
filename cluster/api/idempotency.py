"""`Idempotency-Key`: however often a client repeats a request, it is generated once and charged once.

A request with a key is answered in a task of its own, which its response only follows: a client that has
left shall find the outcome when it asks again. Deadline, drain and a frozen tenant end it as any other;
an answer that is an error frees the key. What is kept, where and for how long: `tenants/outcomes/README.md`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from fastapi import Request, Response

from cluster.api.draft import Draft
from cluster.api.errors import bad_request
from cluster.api.keyed_request import KeyedRequest
from cluster.api.recording import Recording
from cluster.api.request_context import RequestContext
from cluster.api.sending import send
from tenants.outcomes.outcome import MAX_OUTCOME_BYTES

HEADER = "idempotency-key"
REPLAYED = "x-headrace-replayed"

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


async def answer_once(
    http: Request, context: RequestContext, make: Callable[[bytes], Awaitable[Draft]]
) -> Response:
    """The answer that `make` drafts for the body, or the one that was given to this key and body before.

    Raises `ApiError`: 400, 409 or 422 for the key, 503 if nobody can say what came of it.
    """
    key = client_key(http.headers.getlist(HEADER))
    body = await http.body()
    if key is None:
        return await send(http, context, await make(body))
    request = KeyedRequest(context, http.scope["path"], key, body)
    outcome = await request.begin()
    if outcome is not None:
        return Response(outcome.body, headers={**outcome.headers, REPLAYED: "true"})
    recording = Recording(MAX_OUTCOME_BYTES)
    context.services.recorders.start(request.answer(recording, partial(make, body)))
    return await send(http, context, await recording.followed())


def client_key(headers: Sequence[str]) -> str | None:
    """The header's value, None without one. Raises `ApiError` 400 for two, or what is not visible ASCII."""
    if not headers:
        return None
    if len(headers) > 1 or not _KEY.fullmatch(headers[0]):
        message = "The header 'Idempotency-Key' must be given once, as 1 to 255 visible ASCII characters."
        raise bad_request(message, param=HEADER)
    return headers[0]
