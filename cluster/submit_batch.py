"""What is submitted to one replica within one turn of the loop, in one call.

A call costs gateway and replica more than the requests in it do, and a busy gateway admits several at once.
Nobody waits for company: a call leaves in the turn after its first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import NamedTuple

from cluster.link import LinkDown, SubmitReply
from engine.request import Request

MAX_REQUESTS = 16
"""A call; more of one turn share several. A call that fails takes all of its requests along."""


class _Submission(NamedTuple):
    request: Request
    reply: asyncio.Future[SubmitReply]


class SubmitBatch:
    """Owns the requests of this turn, and the calls that are on their way.

    `call` gives a reply for each request, in their order, or raises `LinkDown`.
    """

    def __init__(self, call: Callable[[tuple[Request, ...]], Awaitable[Sequence[SubmitReply]]]) -> None:
        self._call = call
        self._waiting: list[_Submission] = []
        self._calling: set[asyncio.Task[None]] = set()

    async def submit(self, request: Request) -> SubmitReply:
        """Who is cancelled takes nobody along; what was sent is sent. Raises `LinkDown`."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            # Outside of the request that came first: Serve ends what a request called when its client leaves.
            loop.call_soon(self._call_all, context=Context())
        submission = _Submission(request, loop.create_future())
        self._waiting.append(submission)
        return await submission.reply

    def _call_all(self) -> None:
        awaited = [submission for submission in self._waiting if not submission.reply.done()]
        self._waiting = []
        for first in range(0, len(awaited), MAX_REQUESTS):
            task = asyncio.create_task(self._call_with(awaited[first : first + MAX_REQUESTS]))
            self._calling.add(task)
            task.add_done_callback(self._calling.discard)

    async def _call_with(self, submissions: Sequence[_Submission]) -> None:
        try:
            replies = await self._call(tuple(submission.request for submission in submissions))
            for (_, reply), said in zip(submissions, replies, strict=True):
                if not reply.done():
                    reply.set_result(said)
        except BaseException as error:
            is_cancelled = not isinstance(error, Exception)
            for _, reply in submissions:
                if not reply.done():
                    reply.set_exception(LinkDown("the call was given up") if is_cancelled else error)
            if is_cancelled:
                raise
