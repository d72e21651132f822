"""What passes between a socket and Serve: no header that steers Serve, and one request id."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.serve._private.http_util import RequestIdMiddleware
from ray.serve._private.utils import call_function_from_import_path
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from cluster.edge import Edge, Readiness
from cluster.ray_env import ray_environment
from cluster.run_dir import RunDir
from tests.cluster.fakes import Call, FakeGateway

BODY = b'{"model": "tiny", "prompt": "hello"}'


def ids(call: Call) -> list[str]:
    return Headers(raw=call.messages[0]["headers"]).getlist("x-request-id")


async def through(gateway: FakeGateway, path: str = "/health", **headers: str) -> Call:
    """As Ray Serve stacks them: the edge, its own middleware, the application."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Call(Edge(RequestIdMiddleware(gateway.app)), "GET", path, sent, [b""]).finished()


async def test_serve_alone_sends_a_second_id_unchecked(gateway: FakeGateway) -> None:
    bare = RequestIdMiddleware(gateway.app)
    call = await Call(bare, "GET", "/health", {"x-request-id": "bad é"}, [b""]).finished()
    assert len(ids(call)) == 2
    assert "bad é" in ids(call)


@pytest.mark.parametrize("path", ["/health", "/nowhere"])
async def test_a_printable_id_comes_back_once(gateway: FakeGateway, path: str) -> None:
    assert ids(await through(gateway, path, x_request_id="mine 1")) == ["mine 1"]


@pytest.mark.parametrize("asked", ["bad é", "x" * 129, "", " "])
async def test_any_other_never_comes_back(gateway: FakeGateway, asked: str) -> None:
    (shown,) = ids(await through(gateway, x_request_id=asked))
    assert set(shown) <= set("0123456789abcdef")
    assert len(shown) == 32


async def test_the_id_that_is_shown_is_the_one_that_we_log_and_work_under(gateway: FakeGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.keys['inference']}", "content-type": "application/json"}
    app = Edge(RequestIdMiddleware(gateway.app))
    call = await Call(app, "POST", "/v1/completions", headers, [BODY]).finished()
    assert ids(call) == [gateway.generator.last.request_id]


@pytest.mark.parametrize("asked", ["bad é", "x" * 129])
async def test_an_answer_of_serve_s_own_has_one_too_and_a_usable_one(asked: str) -> None:
    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": []})

    app = Edge(RequestIdMiddleware(refuses))
    (shown,) = ids(await Call(app, "GET", "/", {"x-request-id": asked}, [b""]).finished())
    assert len(shown) == 32


@pytest.mark.parametrize(
    "name",
    [
        "x-request-disconnect-disabled",
        "X-Request-Timeout-Seconds",
        "x-session-id",
        "x_session-id",
        "serve_multiplexed_model_id",
        "serve-multiplexed-model-id",
    ],
)
async def test_what_would_steer_serve_does_not_reach_it(name: str) -> None:
    reached: list[dict[str, str]] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(dict(Headers(scope=scope)))

    await Call(Edge(serve), "GET", "/", {name: "?1", "x-request-timeout": "2"}, [b""]).finished()
    assert reached[0].keys() == {"x-request-id", "x-request-timeout"}


async def test_what_is_no_http_passes_untouched() -> None:
    reached: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)

    async def nothing(*_: object) -> None:
        raise AssertionError

    await Edge(app)({"type": "lifespan"}, nothing, nothing)  # type: ignore[arg-type]
    assert reached == [{"type": "lifespan"}]


def test_serve_is_told_where_to_find_it(run_dir: RunDir) -> None:
    told = ray_environment(run_dir, {})["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    (middleware,) = call_function_from_import_path(told)
    assert middleware.cls is Edge


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


class TestHealth:
    async def of(self, gateway: FakeGateway, readiness: Readiness, path: str = "/-/healthz") -> int:
        call = await Call(Edge(gateway.app, readiness), "GET", path, {}, [b""]).finished()
        return int(call.messages[0]["status"])

    async def test_is_serve_s_own_while_the_gateway_is_ready(self, gateway: FakeGateway) -> None:
        assert await self.of(gateway, Readiness()) == 401  # of the application: Serve answers it

    async def test_fails_first_when_the_gateway_leaves_and_all_else_is_still_served(
        self, gateway: FakeGateway
    ) -> None:
        readiness = Readiness()
        readiness.is_ready = False
        assert await self.of(gateway, readiness) == 503
        assert await self.of(gateway, readiness, "/health") == 200
