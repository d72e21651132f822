"""Sends a new replica what `warming_plan.py` has planned for it, one after the other, in the background."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol

from cluster.api.waiting import end_all
from cluster.hot_prefixes import HotPrefixes
from cluster.link import Hello, LinkDown
from cluster.links import Links
from cluster.prompt_chains import PromptChains
from cluster.warming_plan import WARM_FOR_S, WarmingPlans, warming_request

log = logging.getLogger("headrace.gateway")


class WarmingObserver(Protocol):
    """What is counted of it; `cluster/warming_metrics.py` does."""

    def count_warmed(self, num_tokens: int) -> None:
        """A request of a warming has ended, for which so many tokens were computed."""


class Warming:
    """Owns the tasks. `clock` is monotonic, in seconds.

    That a replica is lost meanwhile, or refuses, ends its warming: nobody waits for it.
    """

    def __init__(
        self,
        links: Links,
        hot: HotPrefixes[PromptChains],
        num_prefixes: int,
        clock: Callable[[], float],
        observer: WarmingObserver,
        limit_s: float = WARM_FOR_S,
    ) -> None:
        self._links = links
        self._plans = WarmingPlans(hot, num_prefixes)
        self._clock = clock
        self._observer = observer
        self._limit_s = limit_s
        self._tasks: set[asyncio.Task[None]] = set()

    def greet(self, hello: Hello) -> None:
        """A replica has said hello, and has no other work from here yet."""
        others = [one for one in self._links.candidates() if one.replica_id != hello.replica_id]
        self._plans.greet(hello, len(others), self._clock())
        task = asyncio.ensure_future(self._warm(hello))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Before the links are closed."""
        await end_all(*self._tasks)

    async def _warm(self, hello: Hello) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                while (prompt := self._plans.next(hello.replica_id, self._clock())) is not None:
                    if not await self._compute(prompt, hello):
                        return
        except (TimeoutError, LinkDown) as reason:
            log.info("the warming of replica %s has ended: %s", hello.replica_id, reason or "time is over")
        finally:
            self._plans.forget(hello.replica_id)

    async def _compute(self, prompt: PromptChains, hello: Hello) -> bool:
        """Whether it was."""
        token_ids = prompt.prompt_token_ids
        request = warming_request(f"warming-{secrets.token_hex(8)}", token_ids, *prompt.of(hello))
        last = await self._links.warm(hello.replica_id, request)
        if last is None or last.is_failure:
            return False
        self._observer.count_warmed(len(token_ids) - (last.num_cached_tokens or 0))
        return True
