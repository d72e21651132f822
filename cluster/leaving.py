"""How the process of a gateway or a replica ends when it is asked to: SIGTERM, then what runs may finish.

`signal.signal` works in a process' main thread only, and there Ray's loop runs, in C++; no code of an
actor ever does. Ray's own handler is Python, though, and looks up the function that ends the process by
its name each time it runs. So that name gets another meaning.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

from ray._private import worker

log = logging.getLogger("headrace.leaving")

DRAIN_SLACK_S = 5.0
"""What was not finished at the drain limit is moved or ended then, and that takes a moment, too."""
ENDS_THE_PROCESS = "raise_sys_exit_with_custom_error_message"
"""A global of `ray._private.worker` that its handler of SIGTERM calls, and nothing else in there."""
_leaving: set[asyncio.Task[None]] = set()


def on_sigterm(loop: asyncio.AbstractEventLoop, leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The first SIGTERM runs `leave` on `loop`, then the process ends; the second ends it at once."""
    end = getattr(worker, ENDS_THE_PROCESS)

    def leave_first(message: str, exit_code: int = 0) -> None:
        setattr(worker, ENDS_THE_PROCESS, end)
        loop.call_soon_threadsafe(start)

    def start() -> None:
        log.warning("asked to end: no new work, what runs may finish")
        _leaving.add(asyncio.ensure_future(leave_and_end()))

    async def leave_and_end() -> None:
        try:
            await leave()
        except Exception:
            log.exception("the process could not leave in order")
        log.warning("the process has left and ends")
        end_process(0)

    setattr(worker, ENDS_THE_PROCESS, leave_first)


def end_process(status: int) -> None:
    """At once, whatever other threads do. What was logged is kept."""
    logging.shutdown()
    os._exit(status)
