"""Every token that an engine made is in the books once, whatever happened meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import TAPES, tape_rows
from tests.e2e.served import REPOSITORY, Served, processes_of, until

NUM_REQUESTS = 10_000
AT_ONCE = 24
MAX_IN_DOUBT = 1e-4
NUM_REPLICAS, NUM_GATEWAYS = 3, 2
ANSWERS = {f"answer {length}": list(b"0123456789" * length) for length in (1, 3, 10, 30)}


class Crowd:
    """Clients of three tenants, who ask for whole answers and streams, read them or leave; it counts ends."""

    def __init__(self, served: Served, keys: list[str]) -> None:
        self._url = served.url
        self._keys = keys
        self._random = random.Random(5)
        self.ends: Counter[str] = Counter()

    async def run(self, count: int) -> None:
        limits = httpx.Limits(max_connections=None)
        numbers = iter(range(count))
        async with httpx.AsyncClient(base_url=self._url, timeout=60, limits=limits) as client:
            await asyncio.gather(*(self._ask_on(client, numbers) for _ in range(AT_ONCE)))

    async def _ask_on(self, client: httpx.AsyncClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            headers = {"Authorization": f"Bearer {self._keys[number % len(self._keys)]}"}
            body = {
                "model": "tape",
                "prompt": self._random.choice([*ANSWERS, "stop"]),
                "max_tokens": self._random.choice([1, 5, 50, 400]),
                "n": self._random.choice([1, 1, 1, 2]),
                "stream": self._random.random() < 0.5,
            }
            if self._random.random() < 0.2:
                body["stop"] = ["89"]
            try:
                self.ends[await self._ask(client, headers, body, leaves=self._random.random() < 0.2)] += 1
            except httpx.HTTPError as error:
                self.ends[type(error).__name__] += 1

    async def _ask(
        self, client: httpx.AsyncClient, headers: dict[str, str], body: dict[str, Any], *, leaves: bool
    ) -> str:
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            async for _ in answer.aiter_lines():
                if leaves:
                    return "left"
        return str(answer.status_code)


class Faults:
    """Kills a replica, kills a gateway, freezes Redis for a moment: in turn, until it is told to stop."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for fault in (self._kill_a_replica, self._freeze_redis, self._kill_a_gateway):
                if self._is_over.wait(8):
                    return
                fault()

    def _kill_a_replica(self) -> None:
        os.kill(random.choice(sorted(self._served.members("replica"))), signal.SIGKILL)
        self._served.wait_for_members("replica", NUM_REPLICAS, 30)
        self.done["replica"] += 1

    def _kill_a_gateway(self) -> None:
        os.kill(random.choice(sorted(self._served.members("gateway"))), signal.SIGKILL)
        self._served.wait_for_members("gateway", NUM_GATEWAYS, 30)
        self.done["gateway"] += 1

    def _freeze_redis(self) -> None:
        (redis,) = [one for one in processes_of(self._served.state_dir) if one.name().startswith("valkey")]
        redis.suspend()
        self._is_over.wait(2)
        redis.resume()
        self.done["redis"] += 1


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    tape = tmp_path / "tape.jsonl"
    tape.write_text(tape_rows(TAPES | ANSWERS))
    sizes = ("--replicas", str(NUM_REPLICAS), "--gateways", str(NUM_GATEWAYS), "--kv-memory", "64M")
    served = Served(tmp_path, "--model", f"tape:{tape}?step_ms=5", *sizes)
    yield served
    assert served.close() == 0


def make_tenants(served: Served) -> list[str]:
    keys = []
    prices = {"input_price": 500_000, "cached_input_price": 50_000, "output_price": 1_500_000}
    with served.http(served.admin_key) as operator:
        for name in ("one", "two", "three"):
            tenant = {"tenant_id": name, "tier": "unlimited", "overrides": prices}
            operator.post("/admin/v1/tenants", json=tenant).raise_for_status()
            made = operator.post("/admin/v1/keys", json={"tenant_id": name}).raise_for_status()
            keys.append(made.json()["key"])
    return keys


def verified(served: Served) -> subprocess.CompletedProcess[str]:
    options = ["--state-dir", str(served.state_dir), "--key-file", str(served.state_dir / "admin.key")]
    return subprocess.run(
        [sys.executable, "headrace.py", "ledger", "verify", "--json", "--url", served.url, *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.soak
def test_ten_thousand_requests_with_faults_are_in_the_books_once(served: Served) -> None:
    crowd = Crowd(served, make_tenants(served))
    with Faults(served) as faults:
        asyncio.run(crowd.run(NUM_REQUESTS))
    assert all(faults.done[fault] for fault in ("replica", "gateway", "redis")), faults.done
    served.wait_until_idle(within_s=10)
    answer = verified(served)
    told = json.loads(answer.stdout.splitlines()[-1])
    print(json.dumps({"ends": crowd.ends, "faults": faults.done, "in_doubt": told["in_doubt"]}))
    assert answer.returncode == 0, answer.stderr
    assert told["differences"] == []
    assert len(told["in_doubt"]) <= max(MAX_IN_DOUBT * NUM_REQUESTS, AT_ONCE * faults.done["gateway"])


@pytest.mark.soak
def test_the_reservations_of_a_killed_gateway_end_with_their_lease(served: Served) -> None:
    (key, *_) = make_tenants(served)
    served.wait_for_members("gateway", 2)
    (doomed, target), _ = served.members("gateway").items()
    url = f"http://{target['labels']['direct_address']}"
    body = {"model": "tape", "prompt": "answer 30", "max_tokens": 300, "stream": True, "n": 1}
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(doomed, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            list(lines)
    until(lambda: not psutil.pid_exists(doomed))
    with served.http(served.admin_key) as operator:

        def standing() -> dict[str, Any]:
            limits = operator.get("/admin/v1/limits/one").raise_for_status().json()["limits"]
            return {gauge["kind"]: gauge for gauge in limits}

        operator.patch("/admin/v1/tenants/one", json={"overrides": {"max_concurrency": 4}}).raise_for_status()
        until(lambda: standing()["concurrency"]["remaining"] == 4, within_s=15, still=standing)
