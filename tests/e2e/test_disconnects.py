"""Clients that leave at random moments, many of them: nothing of theirs stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random

import httpx
import pytest

from tests.e2e.conftest import LONG
from tests.e2e.served import Served


@pytest.mark.soak
def test_1000_clients_that_leave_at_random_leave_nothing(tape_cluster: Served) -> None:
    rng = Random(12)
    with ThreadPoolExecutor(32) as pool:
        for is_streamed in (True, False):
            moments = [rng.uniform(0.01, 0.5) for _ in range(500)]
            leave = leave_a_stream if is_streamed else leave_a_whole_answer
            list(pool.map(lambda after_s, leave=leave: leave(tape_cluster, after_s), moments))
    tape_cluster.wait_until_idle(within_s=2)


def leave_a_stream(served: Served, after_s: float) -> None:
    """Reads about as many tokens as come in `after_s`, at 5 ms a step, and closes."""
    body = {"model": "tape", "prompt": LONG, "max_tokens": 2000, "stream": True}
    with served.http() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        for _ in islice(answer.iter_lines(), int(2 * after_s / 0.005)):
            pass


def leave_a_whole_answer(served: Served, after_s: float) -> None:
    body = {"model": "tape", "prompt": LONG, "max_tokens": 2000}
    with served.http() as client, pytest.raises(httpx.TimeoutException):
        client.post("/v1/completions", json=body, timeout=after_s)
