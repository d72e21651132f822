"""The gateway under load, and beside it what it could be compared with: four servers, one after the other.

Two tapes tell two things apart. On the *fast* one the engines are ahead of the gateway, which sends
what has piled up together. On the *paced* one the gateway keeps up, and each token is an event.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from loadtest.bench_run import milliseconds
from loadtest.gateway_bench.answers import BenchRequest
from loadtest.gateway_bench.bounds import missed_bounds
from loadtest.gateway_bench.engine_latency import engine_latency
from loadtest.gateway_bench.load import LoadResult, run_load
from loadtest.gateway_bench.scripted import MODEL
from loadtest.gateway_bench.server import plain_server, ray_stream_server, tape_cluster
from loadtest.server_process import Server

FAST_STEP_MS = 0.5
PACED_STEP_MS = 5.0
_SHORT_TOKENS = 4
_SHORT_ANSWERS_EACH = 20
_LONE_REQUESTS = 200
"""One at a time, for latency."""
_LATENCIES = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms")


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """`streams` at once, each asked for `answers_each` answers of `output_tokens`."""

    streams: int = 64
    output_tokens: int = 256
    answers_each: int = 4
    replicas: int = 2


class GatewayBench:
    """Measures one load. `tell` hears what is going on.

    Each method raises `BrokenAnswer`, `CannotStart` or `CannotBench`.
    """

    def __init__(self, load: GatewayLoad, tell: Callable[[str], None]) -> None:
        self._load = load
        self._tell = tell

    def run(self) -> dict[str, Any]:
        figures: dict[str, Any] = {"streams": self._load.streams, "output_tokens": self._load.output_tokens}
        for part in (self._fast, self._paced, self._uvicorn, self._ray_streams):
            figures |= part()
        figures["ratio"] = round(figures["tokens_per_s"] / figures["uvicorn_tokens_per_s"], 3)
        return {**figures, "held": not missed_bounds(figures)}

    def _fast(self) -> dict[str, Any]:
        self._tell("starting a cluster with a fast tape")
        with self._cluster(FAST_STEP_MS) as server:
            outcome = self._streams(server)
            self._tell("short requests")
            short = run_load(
                server.port,
                BenchRequest(server.key, MODEL, _SHORT_TOKENS, is_streamed=False),
                streams=self._load.streams,
                answers_each=_SHORT_ANSWERS_EACH,
            )
        return {
            "tokens_per_s": round(outcome.tokens_per_s, 1),
            "events_per_s": round(outcome.events_per_s, 1),
            "client_cpu_share": round(outcome.client_cpu_share, 3),
            "requests_per_s": round(short.requests_per_s, 1),
        }

    def _paced(self) -> dict[str, Any]:
        """A token counts for its event: one that shared an event with others is not counted."""
        self._tell("starting a cluster with a paced tape")
        with self._cluster(PACED_STEP_MS) as server:
            outcome = self._streams(server)
            self._tell("one request at a time")
            lone = run_load(
                server.port,
                BenchRequest(server.key, MODEL, _SHORT_TOKENS),
                streams=1,
                answers_each=_LONE_REQUESTS,
            )
        return {
            "event_per_token_tokens_per_s": round(outcome.events_per_s, 1),
            "event_per_token_share": round(outcome.events_per_s / outcome.tokens_per_s, 4),
            **self._added(lone),
        }

    def _added(self, lone: LoadResult) -> dict[str, float]:
        """Percentiles through HTTP less the engine's own."""
        through = milliseconds("ttft", lone.ttfts_s) | milliseconds("itl", lone.gaps_s)
        engine = engine_latency(PACED_STEP_MS, num_requests=_LONE_REQUESTS, output_tokens=_SHORT_TOKENS)
        return {
            f"added_{name.removeprefix('ttft_')}": round((through[name] or 0.0) - engine[name], 3)
            for name in _LATENCIES
        }

    def _uvicorn(self) -> dict[str, Any]:
        self._tell("uvicorn alone")
        with plain_server() as server:
            return {"uvicorn_tokens_per_s": round(self._streams(server).tokens_per_s, 1)}

    def _ray_streams(self) -> dict[str, Any]:
        self._tell("starting an application with one Ray stream a request")
        with ray_stream_server(FAST_STEP_MS, replicas=self._load.replicas) as server:
            return {"per_request_stream_tokens_per_s": round(self._streams(server).tokens_per_s, 1)}

    def _cluster(self, step_ms: float) -> AbstractContextManager[Server]:
        """Each replica has seats for all streams: none waits, however they are spread."""
        return tape_cluster(step_ms, replicas=self._load.replicas, seats=self._load.streams)

    def _streams(self, server: Server) -> LoadResult:
        self._tell(f"{self._load.streams} streams")
        return run_load(
            server.port,
            BenchRequest(server.key, MODEL, self._load.output_tokens),
            streams=self._load.streams,
            answers_each=self._load.answers_each,
        )
