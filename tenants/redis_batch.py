"""What is asked of Redis within one turn of the loop, in one pipeline.

A busy process asks many small questions at once, and a pipeline each costs it more than Redis' answers do.
Nobody waits for company: a pipeline leaves in the turn after its first question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from tenants.bounded import bounded
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.redis_trouble import unavailable

MAX_QUESTIONS = 64
"""A pipeline; more of one turn share several, which are on their way at once."""


class _Question(NamedTuple):
    commands: Sequence[Any]
    answers: asyncio.Future[list[object]]


class RedisBatch:
    """Owns the questions of this turn, and the pipelines that are on their way, each for `timeout_s` at most.

    The client is someone else's, who closes it.
    """

    def __init__(self, client: Redis, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._client = client
        self._slate = client.pipeline(transaction=False)  # is written on, and never sent
        self._timeout_s = timeout_s
        self._asked: list[_Question] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def ask(self, queue: Callable[[Pipeline], object]) -> list[object]:
        """The answers, errors among them, to the commands that `queue` puts into a pipeline.

        Who is cancelled, or waits for less than `timeout_s`, takes nobody along; what was sent is sent.
        Raises `StoreUnavailable` to all of a pipeline that has no answer, and what `queue` raises.
        """
        commands = self._commands(queue)
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._send_all)
        question = _Question(commands, loop.create_future())
        self._asked.append(question)
        try:
            return await question.answers
        except (RedisError, OSError) as error:
            raise unavailable(error, "") from error

    def _commands(self, queue: Callable[[Pipeline], object]) -> Sequence[Any]:
        self._slate.command_stack = []
        queue(self._slate)
        return self._slate.command_stack

    def _send_all(self) -> None:
        awaited = [question for question in self._asked if not question.answers.done()]
        self._asked = []
        for first in range(0, len(awaited), MAX_QUESTIONS):
            task = asyncio.create_task(self._send(awaited[first : first + MAX_QUESTIONS]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, questions: Sequence[_Question]) -> None:
        try:
            replies = iter(await self._execute(questions))
            for commands, answers in questions:
                own = list(islice(replies, len(commands)))
                if not answers.done():
                    answers.set_result(own)
        except Exception as error:
            for _, answers in questions:
                if not answers.done():
                    answers.set_exception(error)

    async def _execute(self, questions: Sequence[_Question]) -> list[object]:
        async with bounded(self._timeout_s), self._client.pipeline(transaction=False) as pipeline:
            for question in questions:
                pipeline.command_stack += question.commands
            replies: list[object] = await pipeline.execute(raise_on_error=False)
            return replies
