"""One run of `headrace load`: the loop that its traffic asks for, with a line on stderr meanwhile."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import suppress

import click

from loadtest.client import LoadClient, LoadRequest, NothingToLoad, list_models, open_http
from loadtest.closed_loop import ClosedLoop
from loadtest.load_options import Options
from loadtest.loop import LoadLoop, Send
from loadtest.open_loop import OpenLoop
from loadtest.record import LoadRun, RequestRecord
from loadtest.report import progress_line
from loadtest.traffic import Traffic

CLOSED_CONCURRENCY = 8
OPEN_CONCURRENCY = 1000
"""Below the 1,024 open files that a process may have where nobody changed it."""
_TERMINAL_REFRESH_S = 0.5
_LOG_REFRESH_S = 5.0


async def run(options: Options) -> LoadRun:
    """Raises `NothingToLoad` if there is nothing to load."""
    is_open = options.traffic.schedule is not None
    concurrency = options.concurrency or (OPEN_CONCURRENCY if is_open else CLOSED_CONCURRENCY)
    async with open_http(options.url, options.key, concurrency) as http:
        models = await list_models(http)
        if not (options.model or models):
            raise NothingToLoad("the server names no model: give one with --model")
        ask = LoadRequest(
            model=options.model or models[0],
            endpoint=options.endpoint,
            is_streamed=options.is_streamed,
            ignore_eos=options.ignore_eos,
            tenant=options.tenant,
        )
        client = LoadClient(http, ask, time.perf_counter, options.timeout_s)
        workload = options.traffic.workload

        async def send(number: int, intended_at: float) -> RequestRecord:
            return await client.send(workload.prompt(number), intended_at)

        loop = _loop(options.traffic, send, concurrency)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, loop.interrupt)
        return await _watched(loop)


def _loop(traffic: Traffic, send: Send, concurrency: int) -> LoadLoop:
    if traffic.schedule is not None:
        return OpenLoop(
            send,
            time.perf_counter,
            arrivals=traffic.schedule.arrivals,
            offered_s=traffic.schedule.offered_s,
            concurrency=concurrency,
        )
    return ClosedLoop(
        send,
        time.perf_counter,
        concurrency=concurrency,
        num_requests=traffic.num_requests,
        duration_s=traffic.duration_s,
    )


async def _watched(loop: LoadLoop) -> LoadRun:
    """Runs it, with a progress line on stderr."""
    showing = asyncio.create_task(_show_progress(loop))
    try:
        return await loop.run()
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _show_progress(loop: LoadLoop) -> None:
    is_terminal = sys.stderr.isatty()
    try:
        while True:
            await asyncio.sleep(_TERMINAL_REFRESH_S if is_terminal else _LOG_REFRESH_S)
            click.echo(
                f"\r{progress_line(loop)}\x1b[K" if is_terminal else progress_line(loop),
                err=True,
                nl=not is_terminal,
            )
    finally:
        if is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
