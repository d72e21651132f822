"""Each policy on each case: a new cluster with empty caches, the same load, one row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from engine.kv_memory import kv_bytes_per_block
from engine.loading.source import resolve_model
from loadtest.routing_bench.cases import RoutingCase
from loadtest.routing_bench.verdict import row_of
from loadtest.server_process import Server, served, without_settings

_KV_DTYPE = "bfloat16"
_ANSWERED, _SOME_NOT_ANSWERED = 0, 1


class LoadFailed(Exception):
    """A load could not run; its last words."""


def compare(
    cases: Sequence[RoutingCase], policies: Sequence[str], replicas: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Rows as they are measured. Raises `LoadFailed`, and `CannotStart` of the server."""
    for case in cases:
        for policy in policies:
            with served(serve_flags(case, policy, replicas)) as server:
                summary = _load(server, load_flags(case, seed))
            yield row_of(case.name, policy, summary)


def serve_flags(case: RoutingCase, policy: str, replicas: int) -> list[str]:
    block_bytes = kv_bytes_per_block(resolve_model(case.model).config, _KV_DTYPE)
    return [
        f"--model={case.model}",
        f"--replicas={replicas}",
        f"--routing={policy}",
        f"--kv-cache-dtype={_KV_DTYPE}",
        f"--kv-memory={case.kv_memory(block_bytes)}",
        *case.serve,
    ]


def load_flags(case: RoutingCase, seed: int) -> list[str]:
    return [f"--seed={seed}", *case.load]


def _load(server: Server, flags: Sequence[str]) -> dict[str, Any]:
    """`headrace load` in a process of its own, as a user runs it; its progress goes to our stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "load", f"http://127.0.0.1:{server.port}", *flags, "--json"],
        env=without_settings() | {"HEADRACE_API_KEY": server.key},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode not in (_ANSWERED, _SOME_NOT_ANSWERED) or not lines:
        raise LoadFailed(f"headrace load ended with status {done.returncode}; the lines above say why")
    summary: dict[str, Any] = json.loads(lines[-1])
    if summary["interrupted"]:
        raise LoadFailed("interrupted")
    return summary
