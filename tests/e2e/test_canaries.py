"""Nothing that a client sent or was told is left behind: not in any log, metric, error, nor in Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tenants.api_key import new_key
from tests.canaries import all_of_redis, found, found_in_files
from tests.e2e.conftest import TAPES
from tests.e2e.served import Served

PROMPT, HEADER = "canary-prompt-71", "canary-header-72"
IDEMPOTENCY = "canary-idempotency-73"
OUTPUT = bytes(TAPES["flag"]).decode()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD: dict[str, Any] = {
    "model": "tape",
    "prompt": f"{PROMPT}, again and again, so that it fills blocks. " * 4,
}


class Sent:
    """All kinds of requests, to every door of a cluster, and the errors that came back."""

    def __init__(self, served: Served) -> None:
        self._served = served
        with served.http(served.admin_key) as admin:
            admin.post(
                "/admin/v1/tenants", json={"tenant_id": "canary", "tier": "unlimited"}
            ).raise_for_status()
            made = admin.post("/admin/v1/keys", json={"tenant_id": "canary"}).raise_for_status()
        self.key: str = made.json()["key"]
        self.unknown_key = new_key()
        self.mistyped_key = self.key[:-1] + ("a" if self.key[-1] != "a" else "b")
        self.errors: list[bytes] = []
        self.statuses: set[int] = set()
        self.said: list[str] = []

    @property
    def secrets(self) -> list[str]:
        return [PROMPT, OUTPUT, HEADER, IDEMPOTENCY, self.key, self.unknown_key, self.mistyped_key]

    def send_all(self) -> None:
        targets = self._served.members("gateway").values()
        direct = [f"http://{target['labels']['direct_address']}" for target in targets]
        for url in (self._served.url, *direct):
            with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
                self._send_good(http)
                self._send_bad(http)
                self._send_keys(http)

    def _send_good(self, http: httpx.Client) -> None:
        flag = {"model": "tape", "prompt": "flag", "max_tokens": 200}
        message = {"role": "user", "content": PROMPT}
        headers = {"idempotency-key": IDEMPOTENCY, "cookie": HEADER, "user-agent": HEADER}
        for path, body in (
            (TEXT, GOOD),
            (TEXT, GOOD | {"stream": True, "n": 2, "stop": PROMPT, "user": PROMPT}),
            (TEXT, flag),
            (TEXT, flag | {"stream": True, "logprobs": 1}),
            (CHAT, {"model": "tape", "messages": [message]}),
        ):
            self.said.append(self._send(http, "POST", path, json=body).text)
        self._send(http, "POST", TEXT, json=GOOD, headers=headers)

    def _send_bad(self, http: httpx.Client) -> None:
        for body in (
            {"model": "tape", "prompt": {"text": PROMPT}},
            {"model": "tape", "prompt": PROMPT, "max_tokens": PROMPT},
            {"model": "tape", "prompt": PROMPT * 10_000},
            {"model": "tape", "messages": PROMPT},
        ):
            self._send(http, "POST", TEXT, json=body)
        self._send(http, "POST", TEXT, content=f'{{"prompt": "{PROMPT}')
        self._send(http, "POST", TEXT, json=GOOD, headers={"x-request-timeout": HEADER})
        self._send(http, "POST", TEXT, json=GOOD, headers={"x-request-timeout": "0.001"})
        self._send(http, "POST", CHAT, content=PROMPT.encode() * 500_000)

    def _send_keys(self, http: httpx.Client) -> None:
        for key in (self.key, self.unknown_key, self.mistyped_key):
            for headers in ({"x-api-key": key}, {"authorization": f"Basic {key}"}, {"cookie": f"key={key}"}):
                self._send(http, "POST", TEXT, json=GOOD, headers={"authorization": ""} | headers)
            self._send(http, "POST", f"{TEXT}?api_key={key}", json=GOOD, headers={"authorization": ""})
            self._send(http, "GET", f"/v1/models?api_key={key}", headers={"authorization": f"Bearer {key}"})
            self._send(http, "GET", f"/{key}/{PROMPT}", headers={"authorization": ""})
            # Who has a key is told, and nobody else, which path there is not.
            http.get(f"/{key}/{PROMPT}", headers={"authorization": f"Bearer {self.key}"})

    def _send(self, http: httpx.Client, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        answer = http.request(method, path, **request | {"headers": headers | request.get("headers", {})})
        self.statuses.add(answer.status_code)
        if answer.status_code >= 400:
            self.errors.append(answer.content)
        return answer


@pytest.fixture(scope="module")
def sent(tape_cluster: Served) -> Sent:
    sent = Sent(tape_cluster)
    sent.send_all()
    tape_cluster.wait_until_idle(within_s=5)
    return sent


def test_requests_good_and_bad_were_answered(sent: Sent) -> None:
    assert sent.statuses == {200, 400, 401, 413, 503}
    assert any(OUTPUT in said for said in sent.said)


def test_errors_quote_nothing(sent: Sent) -> None:
    assert found(sent.secrets, b"\n".join(sent.errors)) == []


def in_all_files(served: Served, secrets: list[str], known: list[str]) -> list[str]:
    """Logs of the launcher, of Ray's processes, of the proxy and of Redis, its data, the spools."""
    paths = [served.state_dir / name for name in known]
    run_dir = (served.state_dir / "run").resolve()
    return [hit for folder in (served.state_dir, run_dir) for hit in found_in_files(secrets, folder, paths)]


def test_no_file_of_the_cluster_holds_any_of_it(tape_cluster: Served, sent: Sent) -> None:
    assert in_all_files(tape_cluster, sent.secrets, ["tape.jsonl"]) == []


def test_the_look_at_files_sees_logs_and_data(tape_cluster: Served, sent: Sent) -> None:
    hits = in_all_files(tape_cluster, ["headrace_Gateway", "tenant.create"], [])
    assert any("logs/serve/replica_headrace_Gateway" in hit for hit in hits), hits
    assert any("redis/appendonlydir" in hit for hit in hits), hits


def test_the_clusters_own_keys_are_in_their_files_only(tape_cluster: Served, sent: Sent) -> None:
    keys = [tape_cluster.demo_key, tape_cluster.admin_key, (tape_cluster.state_dir / "secret").read_text()]
    assert in_all_files(tape_cluster, keys, ["demo.key", "admin.key", "secret"]) == []
    assert found(keys, tape_cluster.output.encode()) == []


def test_no_process_tells_any_of_it_as_a_metric(tape_cluster: Served, sent: Sent) -> None:
    processes = [*tape_cluster.members("gateway").values(), *tape_cluster.members("replica").values()]
    told = [httpx.get(f"http://{one['targets'][0]}/metrics", trust_env=False).content for one in processes]
    with tape_cluster.http(tape_cluster.admin_key) as admin:
        told.append(admin.get("/metrics").raise_for_status().content)
    assert len(told) >= 5, "two gateways, two replicas, the front"
    assert found(sent.secrets, b"\n".join(told)) == []


def test_redis_holds_none_of_it_in_the_clear(tape_cluster: Served, sent: Sent) -> None:
    async def everything() -> bytes:
        client = Redis.from_url(f"unix://{tape_cluster.state_dir.resolve()}/run/redis.sock")
        try:
            return await all_of_redis(client)
        finally:
            await client.aclose()

    held = asyncio.run(everything())
    assert b"canary" in held, "its tenant is there"
    assert found([*sent.secrets, tape_cluster.demo_key, tape_cluster.admin_key], held) == []
