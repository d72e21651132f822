"""Which doors are open: exactly two without a key; everything else, known or not, asks for one."""

from __future__ import annotations

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from cluster.api.middleware import RequestMiddleware
from tests.cluster.fakes import WALL_TIME, Call, FakeGateway

KEYLESS = {("GET", "/health"), ("GET", "/ready")}
ROUTES = {
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/usage"),
    ("POST", "/admin/v1/tiers"),
    ("GET", "/admin/v1/tiers"),
    ("GET", "/admin/v1/tiers/{name}"),
    ("PATCH", "/admin/v1/tiers/{name}"),
    ("DELETE", "/admin/v1/tiers/{name}"),
    ("POST", "/admin/v1/tenants"),
    ("GET", "/admin/v1/tenants"),
    ("GET", "/admin/v1/tenants/{tenant_id}"),
    ("PATCH", "/admin/v1/tenants/{tenant_id}"),
    ("DELETE", "/admin/v1/tenants/{tenant_id}"),
    ("POST", "/admin/v1/keys"),
    ("GET", "/admin/v1/keys"),
    ("GET", "/admin/v1/keys/{key_id}"),
    ("PATCH", "/admin/v1/keys/{key_id}"),
    ("DELETE", "/admin/v1/keys/{key_id}"),
    ("POST", "/admin/v1/keys/{key_id}/rotate"),
    ("GET", "/admin/v1/limits/{tenant_id}"),
    ("POST", "/admin/v1/limits/{tenant_id}/top-up"),
    ("POST", "/admin/v1/limits/{tenant_id}/reset"),
    ("GET", "/admin/v1/usage"),
    ("GET", "/admin/v1/audit"),
    ("GET", "/admin/v1/status"),
    ("POST", "/admin/v1/rollouts"),
    ("GET", "/admin/v1/rollouts"),
    ("GET", "/admin/v1/rollouts/{rollout_id}"),
}
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def test_these_are_all_routes(gateway: FakeGateway) -> None:
    described = (await gateway.call("GET", "/openapi.json")).json()["paths"]
    assert {(method.upper(), path) for path, methods in described.items() for method in methods} == ROUTES


@pytest.mark.parametrize(("method", "path"), sorted(ROUTES))
async def test_every_route_but_two_needs_a_key(gateway: FakeGateway, method: str, path: str) -> None:
    call = await gateway.call(method, path, scope=None)
    if (method, path) in KEYLESS:
        assert call.status == 200
    else:
        assert (call.status, call.error["code"]) == (401, "missing_api_key")
        assert call.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/docs", "/health/", "/ready/x", "//health", "/v1/chat/completions/"]
)
async def test_so_does_a_path_that_is_not_there(gateway: FakeGateway, path: str) -> None:
    assert (await gateway.call("GET", path, scope=None)).status == 401
    for scope in ("inference", "metrics", "admin", "admin:read"):
        call = await gateway.call("GET", path, scope=scope)
        assert (call.status, call.error["code"]) == (404, "not_found")
        assert call.error["message"] == f"There is no path '{path}'."


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/health"), ("PUT", "/ready")]
)
async def test_so_does_a_method_that_is_not_there(gateway: FakeGateway, method: str, path: str) -> None:
    assert (await gateway.call(method, path, scope=None)).status == 401
    call = await gateway.call(method, path)
    assert (call.status, call.error["code"]) == (405, "method_not_allowed")
    assert call.error["type"] == "invalid_request_error"
    assert call.error["message"] == f"'{path}' does not take {method}, but {call.headers['allow']}."
    assert "allow" in call.headers


async def test_all_methods_that_a_path_takes_are_named(gateway: FakeGateway) -> None:
    call = await gateway.call("PUT", "/admin/v1/keys/key_0123456789abcdef")
    assert (call.status, call.headers["allow"]) == (405, "DELETE, GET, PATCH")


async def test_a_long_path_comes_back_cut(gateway: FakeGateway) -> None:
    call = await gateway.call("GET", "/" + "x" * 10_000)
    assert len(call.error["message"]) < 200


@pytest.mark.parametrize(
    ("method", "path", "scopes"),
    [
        ("GET", "/metrics", {"metrics", "admin"}),
        ("GET", "/v1/models", {"inference", "admin"}),
        ("GET", "/openapi.json", {"inference", "metrics", "admin", "admin:read"}),
        ("GET", "/v1/usage", {"inference", "admin"}),
        ("GET", "/admin/v1/tenants", {"admin", "admin:read"}),
        ("POST", "/v1/chat/completions", {"inference"}),
    ],
)
async def test_a_key_opens_what_its_scope_says(
    gateway: FakeGateway, method: str, path: str, scopes: set[str]
) -> None:
    for scope in ("inference", "metrics", "admin", "admin:read"):
        call = await gateway.call(method, path, scope=scope, body=BODY)
        assert call.status == (200 if scope in scopes else 403)


async def test_a_key_is_never_read_from_the_address(gateway: FakeGateway) -> None:
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for name in ("key", "api_key", "access_token", "authorization"):
            answer = await client.get("/v1/models", params={name: gateway.keys["admin"]})
            assert answer.status_code == 401


async def test_who_has_no_key_is_told_before_the_body_is_looked_at(gateway: FakeGateway) -> None:
    for path in ("/v1/chat/completions", "/admin/v1/tenants"):
        assert (await gateway.post(path, b"{", scope=None)).status == 401


class TestModels:
    async def test_the_model_and_its_aliases(self, gateway: FakeGateway) -> None:
        listed = (await gateway.call("GET", "/v1/models")).json()
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["tiny", "small"]
        assert listed["data"][0] == {
            "id": "tiny",
            "object": "model",
            "created": int(WALL_TIME),
            "owned_by": "headrace",
            "max_model_len": 100,
        }

    async def test_one_by_name(self, gateway: FakeGateway) -> None:
        assert (await gateway.call("GET", "/v1/models/small")).json()["id"] == "small"
        call = await gateway.call("GET", "/v1/models/a/b")
        assert (call.status, call.error["code"], call.error["param"]) == (404, "model_not_found", "model")


class TestHealth:
    async def test_ready_is_503_until_a_replica_can_serve(self) -> None:
        is_ready = False
        gateway = await FakeGateway(ready=lambda: is_ready).open()
        call = await gateway.call("GET", "/ready", scope=None)
        assert (call.status, call.error["code"], call.headers["retry-after"]) == (503, "not_ready", "1")
        assert (await gateway.call("GET", "/health", scope=None)).status == 200
        is_ready = True
        assert (await gateway.call("GET", "/ready", scope=None)).json() == {"status": "ready"}


class TestRequestId:
    @pytest.mark.parametrize("asked", ["a", "trace-1 / 2", "x" * 128])
    async def test_a_short_printable_one_is_echoed(self, gateway: FakeGateway, asked: str) -> None:
        call = await gateway.call("GET", "/health", scope=None, headers={"x-request-id": asked})
        assert call.headers["x-request-id"] == asked

    @pytest.mark.parametrize("asked", ["", "x" * 129, "a\x7f", "caf\xe9", "a\tb", " "])
    async def test_any_other_is_replaced(self, gateway: FakeGateway, asked: str) -> None:
        call = await gateway.call("GET", "/health", scope=None, headers={"x-request-id": asked})
        assert len(call.headers["x-request-id"]) == 32
        assert set(call.headers["x-request-id"]) <= set("0123456789abcdef")

    async def test_it_is_on_errors_too_and_never_the_internal_one(self, gateway: FakeGateway) -> None:
        call = await gateway.post("/v1/completions", b"{", headers={"x-request-id": "mine"})
        assert (call.status, call.headers["x-request-id"]) == (400, "mine")
        await gateway.post("/v1/chat/completions", BODY, headers={"x-request-id": "mine"})
        assert gateway.generator.last.request_id != "mine"


class TestFailures:
    async def test_one_that_nobody_foresaw_is_a_500_without_its_words(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails() -> int:
            raise RuntimeError("secret")

        gateway = await FakeGateway(max_model_len=fails).open()
        call = await gateway.call("GET", "/v1/models")
        assert (call.status, call.error["code"]) == (500, "internal_error")
        assert "x-request-id" in call.headers
        assert "unexpected RuntimeError" in caplog.text
        assert "secret" not in caplog.text + call.body.decode()
        assert 'headrace_requests_total{code="500",route="/v1/models"} 1.0' in await metrics(gateway)

    async def test_one_in_the_middle_of_an_answer_leaves_it_unfinished(self, gateway: FakeGateway) -> None:
        async def fails(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError

        call = await Call(RequestMiddleware(fails, gateway.services), "GET", "/", {}, [b""]).finished()
        assert [message["type"] for message in call.messages] == ["http.response.start"]
        assert 'headrace_requests_total{code="500",route="other"} 1.0' in await metrics(gateway)

    async def test_nothing_of_prompt_or_key_is_logged(
        self, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(0)
        for body in (BODY, {**BODY, "temperature": "canary"}, b'{"canary": '):
            await gateway.post("/v1/chat/completions", body)
        await gateway.post("/v1/chat/completions", BODY, headers={"authorization": "Bearer canary"})
        assert "canary" not in caplog.text
        assert gateway.keys["inference"] not in caplog.text


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/admin/v1/tiers/free", "/admin/v1/tiers/{name}"),
        ("/admin/v1/limits/acme", "/admin/v1/limits/{tenant_id}"),
    ],
)
async def test_a_request_is_counted_by_the_whole_path_of_its_route(
    gateway: FakeGateway, path: str, route: str
) -> None:
    assert (await gateway.call("GET", path, scope="admin")).status == 200
    assert f'headrace_requests_total{{code="200",route="{route}"}} 1.0' in await metrics(gateway)


async def metrics(gateway: FakeGateway) -> str:
    return (await gateway.call("GET", "/metrics", scope="metrics")).body.decode()
