"""The commands for operators against the API's real application over memory stores, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner, Result

import headrace
from cluster.admin_cli.client import AdminClient
from tests.cluster.fakes import FakeGateway


class AppTransport(httpx.BaseTransport):
    """Calls an ASGI application on a loop of its own; tells what it was asked, and can answer for it."""

    def __init__(self, app: Any) -> None:
        self.runner = asyncio.Runner()
        self._inner = httpx.ASGITransport(app)
        self.asked: list[tuple[str, str]] = []
        self.instead: dict[tuple[str, str], Callable[[], httpx.Response | None]] = {}
        """What a call meets: an answer or an exception instead of the application's, or something first."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = (request.method, request.url.path)
        self.asked.append(call)
        instead = self.instead.get(call)
        if instead is not None and (answer := instead()) is not None:
            return answer
        return self.runner.run(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


class Desk:
    """Where an operator sits: tenant `acme` owns the key that is used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gateway = FakeGateway()
        self.transport = AppTransport(self.gateway.app)
        self.transport.runner.run(self.gateway.open())
        self.key_file = folder / "admin.key"
        self.key_file.write_text(self.gateway.keys["admin"])

    def meets(self, method: str, path: str, *answers: httpx.Response | BaseException | None) -> None:
        """The next such calls meet these, one after the other; None: the application itself."""
        left = list(answers)

        def next_one() -> httpx.Response | None:
            answer = left.pop(0) if left else None
            if isinstance(answer, BaseException):
                raise answer
            return answer

        self.transport.instead[method, f"/admin/v1{path}"] = next_one

    def overtaken(self, method: str, path: str, other: str, body: dict[str, Any]) -> None:
        """Before the next such call somebody else makes a change."""
        call = (method, f"/admin/v1{path}")

        def change() -> None:
            del self.transport.instead[call]
            AdminClient("http://desk", self.gateway.keys["admin"], self.transport).patch(other, body)

        self.transport.instead[call] = change

    def close(self) -> None:
        self.transport.runner.close()

    def run(self, *arguments: str, typed: str | None = None) -> Result:
        environment = {"HEADRACE_KEY_FILE": str(self.key_file), "HEADRACE_URL": "http://desk"}
        result = CliRunner().invoke(
            headrace.main,
            list(arguments),
            obj=self.transport,
            env=environment,
            input=typed,
            prog_name="headrace",
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def told(self, *arguments: str) -> Any:
        """What a command that is done says in JSON."""
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    def fails(self, *arguments: str) -> tuple[int, str]:
        """Exit status and stderr."""
        result = self.run(*arguments)
        assert result.stdout == ""
        return result.exit_code, result.stderr

    def write(self, text: str, name: str = "tenants.yaml") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)
