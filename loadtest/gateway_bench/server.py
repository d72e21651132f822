"""The servers under measurement, one at a time: a process of its own each, gone when it was measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.gateway_bench.answers import tape
from loadtest.gateway_bench.scripted import MODEL
from loadtest.server_process import READY, Server, running, served

_TOKEN_BUDGET = 1024
"""Of a step: the prompts of all streams, when they begin together."""


@contextmanager
def tape_model(step_ms: float) -> Iterator[str]:
    """The name of a model that answers every prompt with `TEXT`, a step in `step_ms`."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        file = Path(folder) / "tape.jsonl"
        file.write_text(tape())
        yield f"tape:{file}?step_ms={step_ms}"


@contextmanager
def tape_cluster(step_ms: float, *, replicas: int, seats: int) -> Iterator[Server]:
    """`headrace serve` with a tape and `seats` a replica. Raises `CannotStart`."""
    with tape_model(step_ms) as model:
        flags = {
            "model": model,
            "served-model-name": MODEL,
            "replicas": replicas,
            "max-num-seqs": seats,
            "max-num-batched-tokens": max(_TOKEN_BUDGET, seats),
        }
        with served([f"--{name}={value}" for name, value in flags.items()]) as cluster:
            yield cluster


@contextmanager
def plain_server() -> Iterator[Server]:
    """Events from uvicorn and nothing else. Raises `CannotStart`."""
    with running(
        lambda port, folder: ["-m", "loadtest.gateway_bench.plain_server", str(port)], "Uvicorn running"
    ) as (port, _):
        yield Server(port)


@contextmanager
def ray_stream_server(step_ms: float, *, replicas: int) -> Iterator[Server]:
    """A Serve application with one Ray stream a request. Raises `CannotStart`."""
    module = "loadtest.gateway_bench.ray_stream_server"
    with running(
        lambda port, folder: ["-m", module, str(port), str(folder), str(step_ms), str(replicas)], READY
    ) as (port, _):
        yield Server(port)
