"""Tenants of a cluster, each with a load of its own, at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import httpx

from loadtest.arrivals import poisson_arrivals
from loadtest.client import LoadClient, LoadRequest, open_http
from loadtest.closed_loop import ClosedLoop
from loadtest.loop import LoadLoop
from loadtest.open_loop import OpenLoop
from loadtest.percentiles import percentile
from loadtest.record import REJECTED, RequestRecord
from loadtest.workload import RandomPrompts
from tenants.terms import ServiceClass
from tests.e2e.served import Served

GIVES_UP_S = 60.0
MAX_CONNECTIONS = 1000
VOCAB_SIZE = 256
"""Of the tape: bytes."""
OUTPUT_TOKENS = 4
NO_RATES: dict[str, Any] = {
    "requests_per_min": None,
    "input_tokens_per_min": None,
    "output_tokens_per_min": None,
    "max_concurrency": None,
    "max_queue_len": None,
}


class Load(NamedTuple):
    """What one tenant asks: `rate` requests a second whatever happens, or as many clients without pause."""

    rate: float | None = None
    num_clients: int = 1
    prompt_tokens: int = 240
    service_class: ServiceClass = "interactive"
    url: str | None = None
    """Of one gateway; None: of the front."""


class Crowd:
    """Owns the tenants' keys. Prompts are never alike, so nothing of them is cached."""

    def __init__(self, served: Served, tiers: Mapping[str, str]) -> None:
        """Makes a tenant of each name, with its tier's weight and none of its limits."""
        self._served = served
        self._num_loads = 0
        self.num_refused_for_ever = 0
        """Answers of the last `ask`, 429 or 503, that did not say when to come back."""
        with served.http(served.admin_key) as operator:
            for tenant_id, tier in tiers.items():
                made = {"tenant_id": tenant_id, "tier": tier, "overrides": NO_RATES}
                operator.post("/admin/v1/tenants", json=made).raise_for_status()
            self._keys = {
                tenant_id: operator.post("/admin/v1/keys", json={"tenant_id": tenant_id}).json()["key"]
                for tenant_id in tiers
            }

    def ask(self, duration_s: float, loads: Mapping[str, Load]) -> dict[str, list[RequestRecord]]:
        """What became of each one's requests, once all have ended; `loads` by tenant."""
        self.num_refused_for_ever = 0
        return asyncio.run(self._ask(duration_s, loads))

    async def _ask(self, duration_s: float, loads: Mapping[str, Load]) -> dict[str, list[RequestRecord]]:
        async with AsyncExitStack() as stack:
            loops = {}
            for tenant_id, load in loads.items():
                url = load.url or self._served.url
                http = await stack.enter_async_context(open_http(url, self._keys[tenant_id], MAX_CONNECTIONS))
                http.headers["x-headrace-class"] = load.service_class
                http.event_hooks = {"response": [self._look_at]}
                client = LoadClient(
                    http, LoadRequest("tape", "completions", tenant=tenant_id), time.monotonic, GIVES_UP_S
                )
                loops[tenant_id] = self._loop(client, load, duration_s)
            runs = await asyncio.gather(*(loop.run() for loop in loops.values()))
        return {tenant_id: list(run.records) for tenant_id, run in zip(loops, runs, strict=True)}

    async def _look_at(self, answer: httpx.Response) -> None:
        if str(answer.status_code) in REJECTED and int(answer.headers.get("retry-after", 0)) < 1:
            self.num_refused_for_ever += 1

    def _loop(self, client: LoadClient, load: Load, duration_s: float) -> LoadLoop:
        self._num_loads += 1
        seed = self._num_loads
        prompts = RandomPrompts(seed, load.prompt_tokens, OUTPUT_TOKENS, VOCAB_SIZE)

        async def send(number: int, intended_at: float) -> RequestRecord:
            return await client.send(prompts.prompt(number), intended_at)

        if load.rate is None:
            return ClosedLoop(send, time.monotonic, concurrency=load.num_clients, duration_s=duration_s)
        arrivals = poisson_arrivals(load.rate, seed, duration_s=duration_s)
        return OpenLoop(
            send, time.monotonic, arrivals=arrivals, offered_s=duration_s, concurrency=MAX_CONNECTIONS
        )


def ttft_s(records: Sequence[RequestRecord], percent: float) -> float:
    """A percentile of those that were answered."""
    found = percentile([one.ttft_s for one in records if one.ttft_s is not None], percent)
    assert found is not None
    return found
