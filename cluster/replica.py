"""The replica: a Ray Serve actor that holds the model and hosts the engine. It decides nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
from ray import serve

from cluster.engine_host import EngineHost
from cluster.engine_metrics import EngineMetrics
from cluster.index.block_news import BlockNews
from cluster.index.feed import IndexFeed, claim_incarnation
from cluster.index.redis_index import RedisPrefixIndex
from cluster.leaving import DRAIN_SLACK_S, end_process, on_sigterm
from cluster.link import decode_aborts, decode_report, decode_requests, encode
from cluster.loading import load_engine
from cluster.logs import set_up_logging
from cluster.spec import ClusterSpec
from tenants.redis_client import connect

log = logging.getLogger("headrace.replica")

SWITCH_INTERVAL_S = 0.0005
"""The engine thread holds the GIL often; at Python's 5 ms the event loop would wait 5 ms each time."""
POLL_S = 0.05


class Replica:
    """One engine. Every method is called by gateways over a pinned Serve handle; payloads are msgspec bytes.

    `replica` is the id that the router matched; it is here because the router reads it from the call.
    """

    async def __init__(self, spec_json: str) -> None:  # type: ignore[misc]  # Serve awaits it
        spec = ClusterSpec.from_json(spec_json)
        set_up_logging(spec.settings.log_level)
        self._run_dir = spec.run_dir
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        news = BlockNews()
        loaded = await loop.run_in_executor(thread, load_engine, spec, self._replica_id, news)
        index = RedisPrefixIndex(connect(spec.redis_url))
        incarnation = await claim_incarnation(index, loaded.hello.incarnation)
        metrics = EngineMetrics(lambda: self._host.counters, lambda: self._feed.figures, loaded.start_seconds)
        self._host = EngineHost(
            loaded.core,
            msgspec.structs.replace(loaded.hello, incarnation=incarnation),
            time.monotonic,
            on_step=metrics.observe_step,
            on_integrity_error=metrics.integrity_errors.inc,
            on_fatal=_end_broken,
            watchdog_s=loaded.watchdog_s,
        )
        self._feed = IndexFeed(index, incarnation, news, self._host.abort, time.monotonic)
        metrics.serve(self._replica_id, self._run_dir)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.freeze()
        self._host.start(loop, thread)
        self._feed.start()
        on_sigterm(loop, partial(self._leave, spec.settings.drain_limit_s + DRAIN_SLACK_S))

    async def submit(self, gateway_id: str, payload: bytes, *, replica: str) -> bytes:
        """All that a gateway submits in one turn of its loop; a reply each."""
        requests = decode_requests(payload)
        return encode(tuple(self._host.submit(gateway_id, request) for request in requests))

    async def abort(self, payload: bytes, *, replica: str) -> bytes:
        self._host.abort(decode_aborts(payload))
        return b""

    async def report(self, gateway_id: str, payload: bytes, *, replica: str) -> bytes:
        self._host.report(gateway_id, decode_report(payload))
        return b""

    async def attach(self, gateway_id: str, *, replica: str) -> AsyncIterator[bytes]:
        async for message in self._host.attach(gateway_id):
            yield message

    def check_health(self) -> None:
        self._host.check()

    async def _leave(self, limit_s: float) -> None:
        """What runs finishes, or is moved by the gateways, within `limit_s`."""
        self._host.leave()
        deadline = time.monotonic() + limit_s
        while not self._host.has_finished and time.monotonic() < deadline:  # noqa: ASYNC110  once a life
            await asyncio.sleep(POLL_S)

    def __del__(self) -> None:
        host = getattr(self, "_host", None)  # Serve calls this for a failed constructor, too
        if host is not None:
            host.stop()
            self._feed.close()
            self._run_dir.drop_target()


def _end_broken(error: BaseException) -> None:
    """A broken engine must not linger: Serve's replacement is the remedy, a zombie is not."""
    log.critical("the engine failed and this replica ends: %s", type(error).__name__)
    end_process(1)
