"""Lua scripts run by their hash, and told again to a Redis that forgot them.

A script that Redis does not know is not run at all, so only what was not run is ever repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError, RedisError

from tenants.bounded import bounded

Argument = bytes | str | float


class Script:
    """The `.lua` files `names` of a package, one after the other."""

    def __init__(self, package: str, *names: str) -> None:
        folder = files(package)
        self.text = "\n".join(folder.joinpath(f"{name}.lua").read_text() for name in names)
        self._sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def queue(self, pipeline: Pipeline, keys: str | tuple[str, ...], *args: Argument) -> None:
        named = (keys,) if isinstance(keys, str) else keys
        pipeline.evalsha(self._sha, len(named), *named, *args)


class ScriptCall(NamedTuple):
    script: Script
    keys: str | tuple[str, ...]
    args: tuple[Argument, ...]


class Scripts:
    """Owns the loading of `scripts`. The client is someone else's, who closes it and bounds its calls."""

    def __init__(self, client: Redis, scripts: Sequence[Script], load_timeout_s: float) -> None:
        self._client = client
        self._scripts = scripts
        self._load_timeout_s = load_timeout_s
        self._loading: asyncio.Task[None] | None = None

    async def run(self, calls: Sequence[ScriptCall]) -> list[object]:
        """The answers, errors among them, of `calls`: one round trip, and two more if scripts were forgotten.

        Raises what the client raises when there is no answer.
        """
        answers = await self._execute(calls)
        unknown = [at for at, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            await self.load()
            for at, answer in zip(unknown, await self._execute([calls[at] for at in unknown]), strict=True):
                answers[at] = answer
        return answers

    async def load(self) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for script in self._scripts:
                pipeline.script_load(script.text)
            await pipeline.execute()

    def load_soon(self) -> None:
        """For whoever found in a pipeline of their own that one is not known: the next will find it."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._try_to_load())

    async def _execute(self, calls: Sequence[ScriptCall]) -> list[object]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for script, keys, args in calls:
                script.queue(pipeline, keys, *args)
            answers: list[object] = await pipeline.execute(raise_on_error=False)
            return answers

    async def _try_to_load(self) -> None:
        with suppress(RedisError, OSError, TimeoutError):
            async with bounded(self._load_timeout_s):
                await self.load()
