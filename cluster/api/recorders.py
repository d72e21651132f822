"""Tasks that outlive the request that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Recorders:
    """Owns the tasks that record; asyncio itself would let go of them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
