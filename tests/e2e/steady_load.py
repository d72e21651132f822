"""Clients that ask a cluster without pause, and check every word of what they are told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

import httpx

from tests.e2e.served import Served

CONNECTIONS_REFUSED = (httpx.ConnectError,)


class SteadyLoad:
    """`streams` clients that stream and `wholes` that do not, until the block ends.

    `texts` are the prompts and their answers, which clients ask for in turn. Afterwards `outcomes` counts
    what became of each answer, by kind: `ok`, or what was wrong with it.
    """

    def __init__(
        self, served: Served, texts: dict[str, str], *, streams: int, wholes: int, url: str | None = None
    ) -> None:
        self._url = url or served.url
        self._key = served.demo_key
        self._texts = list(texts.items())
        self._kinds = ["stream"] * streams + ["whole"] * wholes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.outcomes: dict[str, Counter[str]] = {"stream": Counter(), "whole": Counter()}
        self.longest_pause_s = 0.0
        """Between two events of one stream."""

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), "an answer never ended"

    @property
    def num_answers(self) -> int:
        return sum(counter.total() for counter in self.outcomes.values())

    def wait_for(self, count: int, within_s: float) -> None:
        """Until so many more answers have ended."""
        target, deadline = self.num_answers + count, time.monotonic() + within_s
        while self.num_answers < target:
            assert time.monotonic() < deadline, f"only {self.num_answers} of {target}: {self.outcomes}"
            time.sleep(0.05)

    async def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=100, limits=limits
        ) as client:
            await asyncio.gather(
                *(self._ask_on(client, kind, number) for number, kind in enumerate(self._kinds))
            )

    async def _ask_on(self, client: httpx.AsyncClient, kind: str, number: int) -> None:
        while not self._is_over.is_set():
            prompt, text = self._texts[number % len(self._texts)]
            number += 1
            body = {"model": "tape", "prompt": prompt, "max_tokens": 4000}
            ask = self._stream if kind == "stream" else self._whole
            try:
                outcome = await ask(client, body, text)
            except httpx.HTTPError as error:
                outcome = type(error).__name__
            self.outcomes[kind][outcome] += 1

    async def _whole(self, client: httpx.AsyncClient, body: dict[str, Any], text: str) -> str:
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return f"status {answer.status_code} {answer.json()['error']['code']}"
        return _check(answer.json()["choices"][0]["text"], answer.json()["usage"], text)

    async def _stream(self, client: httpx.AsyncClient, body: dict[str, Any], text: str) -> str:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        heard, usage, ends = "", {}, 0
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                return f"status {answer.status_code}"
            last = time.monotonic()
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                now = time.monotonic()
                self.longest_pause_s, last = max(self.longest_pause_s, now - last), now
                if line == "data: [DONE]":
                    ends += 1
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return f"error {event['error']['code']}"
                heard += "".join(choice["text"] for choice in event["choices"])
                usage = event["usage"] or usage
        return _check(heard, usage, text) if ends == 1 else f"{ends} ends"


def _check(heard: str, usage: dict[str, Any], text: str) -> str:
    if heard != text:
        return "wrong text"
    return "ok" if usage["completion_tokens"] == len(text) + 1 else "wrong usage"
