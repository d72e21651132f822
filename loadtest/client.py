"""The load client's side of the API: one prompt out, one record back, whatever happens between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import httpx
import msgspec

from loadtest.answer import AnswerReader
from loadtest.event_stream import EventStream
from loadtest.record import RequestRecord
from loadtest.workload import Prompt

Endpoint = Literal["chat", "completions"]
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_REPLICA_HEADER = "x-headrace-replica"
_CONNECT_TIMEOUT_S = 5.0
_MAX_REASON_CHARS = 200


class NothingToLoad(Exception):
    """There is nothing to load there; one line."""


class LoadRequest(NamedTuple):
    """What every request of a run asks for. `tenant` only labels the records."""

    model: str
    endpoint: Endpoint
    is_streamed: bool = True
    ignore_eos: bool = True
    tenant: str = "default"

    def body(self, prompt: Prompt) -> bytes:
        body: dict[str, Any] = {"model": self.model, "max_tokens": prompt.output_tokens, "temperature": 0}
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt.content}]
        else:
            body["prompt"] = prompt.content
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(body)  # 128 K token ids take 1.3 ms, and httpx 15


def open_http(url: str, key: str | None, concurrency: int) -> httpx.AsyncClient:
    """A client for `url` (with or without `/v1` at its end) that no proxy of the environment slows down."""
    return httpx.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
        timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        trust_env=False,
    )


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def list_models(http: httpx.AsyncClient) -> list[str]:
    """The models that the server names. Raises `NothingToLoad` if none answers, or it wants another key."""
    where = f"{http.base_url.host}:{http.base_url.port or http.base_url.scheme}"
    try:
        async with asyncio.timeout(2 * _CONNECT_TIMEOUT_S):
            answer = await http.get("/v1/models")
    except (httpx.HTTPError, TimeoutError) as error:
        raise NothingToLoad(f"nothing answers at {where} ({type(error).__name__})") from None
    if answer.status_code in (401, 403):
        raise NothingToLoad(f"{where} refuses the key ({answer.status_code}): give one with --key-file")
    try:
        return [model.id for model in msgspec.json.decode(answer.content, type=_Models).data]
    except msgspec.DecodeError:
        raise NothingToLoad(
            f"{where} does not speak the OpenAI API: /v1/models is no list ({answer.status_code})"
        ) from None


class LoadClient:
    """Sends one run's requests. `clock` is monotonic, in seconds; `timeout_s` bounds a whole answer."""

    def __init__(
        self, http: httpx.AsyncClient, ask: LoadRequest, clock: Callable[[], float], timeout_s: float
    ) -> None:
        self._http = http
        self._ask = ask
        self._clock = clock
        self._timeout_s = timeout_s

    async def send(self, prompt: Prompt, intended_at: float) -> RequestRecord:
        """Never raises for what a server or a network does: that is the record's status."""
        answer = AnswerReader(prompt.output_tokens if self._ask.ignore_eos else None)
        sent_at = self._clock()
        status = await self._exchange(prompt, answer)
        return RequestRecord(
            tenant=self._ask.tenant,
            intended_at=intended_at,
            sent_at=sent_at,
            finished_at=self._clock(),
            status=status,
            token_times=tuple(answer.token_times),
            last_token_at=answer.last_token_at,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            replica=answer.replica,
            reason=self._without_key(answer.reason)[:_MAX_REASON_CHARS],
        )

    def _without_key(self, text: str) -> str:
        """Some servers quote the key that they refuse."""
        key = self._http.headers.get("Authorization", "").removeprefix("Bearer ")
        return text.replace(key, "…") if key else text

    async def _exchange(self, prompt: Prompt, answer: AnswerReader) -> str:
        path, body = _PATHS[self._ask.endpoint], self._ask.body(prompt)
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream("POST", path, content=body) as response,
            ):
                answer.replica = response.headers.get(_REPLICA_HEADER, "")
                if response.status_code != 200:
                    answer.on_body(await response.aread())
                    return str(response.status_code)
                await self._read(response, answer)
        except httpx.ConnectError:
            return "no connection"
        except (TimeoutError, httpx.TimeoutException):
            return "timeout"
        except httpx.HTTPError:
            return "cut off"
        return answer.status

    async def _read(self, response: httpx.Response, answer: AnswerReader) -> None:
        if not self._ask.is_streamed:
            answer.on_body(await response.aread())
            return
        events = EventStream()
        async for received in response.aiter_raw():
            now = self._clock()
            for data in events.feed(received):
                answer.on_event(data, now)
