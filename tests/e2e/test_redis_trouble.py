"""A cluster whose Redis is in trouble for half a minute at a time, under load from two gateways."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.conftest import tape_rows
from tests.e2e.served import Served, until
from tests.redis_trouble import TroubledRedis

pytestmark = pytest.mark.soak

TROUBLE_S = 30.0
KNOWN_AFTER_S = 1.0
"""By then every gateway knows: its next probe has failed."""
ADDED_P99_S = 0.25
BACK_WITHIN_S = 5.0
HANGS_AFTER_S = 10.0
PURSE = 10**7
PRICE = 10**6
"""A micro-unit a token."""
NO_RATES = {
    "requests_per_min": None,
    "input_tokens_per_min": None,
    "output_tokens_per_min": None,
    "max_concurrency": None,
    "max_queue_len": None,
}
TENANTS: dict[str, dict[str, Any]] = {
    "free-one": {"tier": "free", "overrides": NO_RATES},
    "open-one": {"tier": "unlimited"},
    "paid-one": {
        "tier": "paid",
        "overrides": NO_RATES | {"budget_day": 100 * PURSE, "input_price": PRICE, "output_price": PRICE},
    },
}


class Ended(NamedTuple):
    tenant_id: str
    began: float
    seconds: float
    code: str
    """"200", or that of the error."""
    completion_tokens: int = 0


class Clients:
    """Ask one request after the other, each of the gateways in turn, until they are closed."""

    def __init__(self, served: Served) -> None:
        served.wait_for_members("gateway", 2)
        gateways = served.members("gateway").values()
        self._urls = [f"http://{target['labels']['direct_address']}" for target in gateways]
        self._is_over = threading.Event()
        self.ended: list[Ended] = []
        with served.http(served.admin_key) as operator:
            keys = {tenant_id: _new_key(operator, tenant_id) for tenant_id in TENANTS}
        self._threads = [
            threading.Thread(target=self._ask_on, args=(name, key)) for name, key in keys.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(timeout=HANGS_AFTER_S)
            assert not thread.is_alive(), "an answer never ended"

    def since(self, began: float, *tenant_ids: str) -> list[Ended]:
        return [
            one for one in list(self.ended) if one.began >= began and one.tenant_id in (tenant_ids or TENANTS)
        ]

    def _ask_on(self, tenant_id: str, key: str) -> None:
        with httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=HANGS_AFTER_S) as client:
            while not self._is_over.is_set():
                for url in self._urls:
                    self.ended.append(_ask(client, url, tenant_id))
                    time.sleep(0.02)  # the machine is small


def _ask(client: httpx.Client, url: str, tenant_id: str) -> Ended:
    began = time.monotonic()
    answer = client.post(
        f"{url}/v1/completions", json={"model": "tape", "prompt": "a prompt", "max_tokens": 20}
    )
    seconds, body = time.monotonic() - began, answer.json()
    if answer.status_code != 200:
        return Ended(tenant_id, began, seconds, body["error"]["code"])
    return Ended(tenant_id, began, seconds, "200", body["usage"]["completion_tokens"])


def _new_key(operator: httpx.Client, tenant_id: str) -> str:
    made = operator.post("/admin/v1/tenants", json={"tenant_id": tenant_id} | TENANTS[tenant_id])
    made.raise_for_status()
    key = operator.post("/admin/v1/keys", json={"tenant_id": tenant_id}).raise_for_status().json()["key"]
    assert isinstance(key, str)
    return key


def _p99(ended: list[Ended]) -> float:
    seconds = sorted(one.seconds for one in ended)
    return seconds[len(seconds) * 99 // 100]


class Troubled(NamedTuple):
    redis: TroubledRedis
    served: Served
    clients: Clients

    def metric(self, name: str) -> list[float]:
        """Of each gateway, the sum over its labels."""
        return [
            sum(
                float(line.rpartition(" ")[2])
                for line in httpx.get(f"http://{target['targets'][0]}/metrics").text.splitlines()
                if line.startswith((f"{name} ", f"{name}{{"))
            )
            for target in self.served.members("gateway").values()
        ]

    def purses(self) -> list[float]:
        return self.metric("headrace_prepaid_held_micro_units")


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troubled]:
    state_dir = tmp_path_factory.mktemp("trouble")
    redis = TroubledRedis(tmp_path_factory.mktemp("redis"))
    tape = state_dir / "tape.jsonl"
    tape.write_text(tape_rows({}))
    sizes = ("--replicas", "1", "--gateways", "2", "--kv-memory", "64M")
    served = Served(state_dir, "--model", f"tape:{tape}?step_ms=5", *sizes, "--redis-url", redis.url)
    clients = Clients(served)
    yield Troubled(redis, served, clients)
    clients.close()
    assert served.close() == 0
    redis.close()


class Case(NamedTuple):
    begin: Callable[[TroubledRedis], object]
    end: Callable[[TroubledRedis], object]


CASES = {
    "refused": Case(lambda redis: redis.proxy.refuse(), lambda redis: redis.proxy.passes()),
    "frozen": Case(TroubledRedis.stop_process, TroubledRedis.continue_process),
    "2 s slow": Case(lambda redis: redis.proxy.delay(2), lambda redis: redis.proxy.passes()),
    "restarted empty": Case(TroubledRedis.kill, TroubledRedis.restart_empty),
    "no evalsha": Case(lambda redis: redis.forbid("evalsha"), lambda redis: redis.allow("evalsha")),
    "out of memory": Case(TroubledRedis.fill_memory, TroubledRedis.free_memory),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_half_a_minute_of_trouble(case: Case, troubled: Troubled) -> None:
    clients = troubled.clients
    until(lambda: min(troubled.metric("headrace_record_up")) == 1)
    until(lambda: troubled.purses() == [PURSE, PURSE], within_s=30, still=troubled.purses)
    quiet = time.monotonic()
    time.sleep(TROUBLE_S / 3)
    p99_before, offline_before = (
        _p99(clients.since(quiet)),
        troubled.metric("headrace_degraded_admissions_total"),
    )

    case.begin(troubled.redis)
    began = time.monotonic()
    time.sleep(TROUBLE_S)
    during = clients.since(began)
    is_up = troubled.metric("headrace_record_up")
    case.end(troubled.redis)
    ended_at = time.monotonic()

    served = [one for one in during if one.tenant_id != "free-one"]
    assert Counter(one.code for one in served) == {"200": len(served)}, "0 lost"
    assert len(served) > 100
    known = [one for one in during if one.tenant_id == "free-one" and one.began > began + KNOWN_AFTER_S]
    assert Counter(one.code for one in known) == {"store_unavailable": len(known)}
    assert max(one.seconds for one in during) < HANGS_AFTER_S / 2, "0 hung"
    assert _p99(served) - p99_before <= ADDED_P99_S
    assert is_up == [0.0, 0.0]
    assert all(
        now > then
        for now, then in zip(
            troubled.metric("headrace_degraded_admissions_total"), offline_before, strict=True
        )
    )

    time.sleep(BACK_WITHIN_S)
    back = time.monotonic()
    time.sleep(BACK_WITHIN_S)
    after = clients.since(back)
    assert Counter(one.code for one in after) == {"200": len(after)}, (
        f"not yet well {back - ended_at} s after"
    )
    assert troubled.metric("headrace_record_up") == [1.0, 1.0]


def test_afterwards_every_token_was_charged_once(troubled: Troubled) -> None:
    """Runs last: it ends the clients."""
    troubled.clients.close()

    def used(tenant_id: str) -> tuple[int, int]:
        with troubled.served.http(troubled.served.admin_key) as operator:
            page = operator.get("/admin/v1/usage", params={"tenant_id": tenant_id}).raise_for_status()
        rows = page.json()["data"]
        return sum(row["requests"] for row in rows), sum(row["completion_tokens"] for row in rows)

    for tenant_id in TENANTS:
        answered = [one for one in troubled.clients.since(0.0, tenant_id) if one.code == "200"]
        made = len(answered), sum(one.completion_tokens for one in answered)
        until(lambda: used(tenant_id) == made, 30, lambda: f"{used(tenant_id)} of {made}")  # noqa: B023
