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

from tests.e2e.served import Served, until


class SteadyLoad:
    """`streams` clients that stream and `wholes` that do not; when the block ends, all must have been well.

    `versions` are what the model may answer: each the same prompts, which clients ask for in turn, with
    its texts. `outcomes` counts what became of each answer, by kind: `ok`, or what was wrong with it.
    """

    def __init__(
        self, served: Served, *versions: dict[str, str], streams: int, wholes: int, url: str | None = None
    ) -> None:
        self._url = url or served.url
        self._key = served.demo_key
        self._versions = versions
        self._prompts = list(versions[0])
        self._kinds = ["stream"] * streams + ["whole"] * wholes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.outcomes: dict[str, Counter[str]] = {"stream": Counter(), "whole": Counter()}
        self.heard: set[str] = set()
        """Texts of answers that were well."""
        self.longest_pause_s = 0.0
        """Until an event of a stream, from the one before it or from the request."""

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), "an answer never ended"
        if error is None:
            found = set().union(*self.outcomes.values())
            assert found == {"ok"}, self.outcomes

    @property
    def num_answers(self) -> int:
        return sum(counter.total() for counter in self.outcomes.values())

    def wait_for(self, count: int, within_s: float = 30) -> None:
        """Until so many more answers have ended."""
        target = self.num_answers + count
        until(lambda: self.num_answers >= target, within_s, lambda: f"not yet {target}: {self.outcomes}")

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
            prompt = self._prompts[number % len(self._prompts)]
            number += 1
            body = {"model": "tape", "prompt": prompt, "max_tokens": 4000}
            ask = self._stream if kind == "stream" else self._whole
            try:
                outcome = await ask(client, body)
            except httpx.HTTPError as error:
                outcome = type(error).__name__
            self.outcomes[kind][outcome] += 1

    async def _whole(self, client: httpx.AsyncClient, body: dict[str, Any]) -> str:
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return f"status {answer.status_code} {answer.json()['error']['code']}"
        return self._check(body["prompt"], answer.json()["choices"][0]["text"], answer.json()["usage"])

    async def _stream(self, client: httpx.AsyncClient, body: dict[str, Any]) -> str:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        heard, usage, ends, last = "", {}, 0, time.monotonic()
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                return f"status {answer.status_code}"
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
        return self._check(body["prompt"], heard, usage) if ends == 1 else f"{ends} ends"

    def _check(self, prompt: str, heard: str, usage: dict[str, Any]) -> str:
        if heard not in [texts[prompt] for texts in self._versions]:
            return "wrong text"
        if usage["completion_tokens"] != len(heard) + 1:  # the end's token has no text
            return "wrong usage"
        self.heard.add(heard)
        return "ok"
