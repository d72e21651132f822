"""Keys before a real engine: clients that leave end nothing, and their repeats cost it nothing."""

from __future__ import annotations

import asyncio

from engine.tape import ANY_PROMPT
from tests.cluster.fakes import Call
from tests.cluster.in_process import InProcess, in_process, tape

NUM_CLIENTS = 20
MAX_TOKENS = 40
ANSWER = bytes(97 + index % 26 for index in range(MAX_TOKENS))


def begin(gateway: InProcess, number: int) -> Call:
    body = {"model": "tiny", "prompt": f"{number}", "max_tokens": MAX_TOKENS, "stream": number % 2 == 0}
    return gateway.begin("POST", "/v1/completions", body=body, headers={"idempotency-key": f"{number}"})


def text_of(call: Call) -> str:
    if call.headers["content-type"] == "application/json":
        return str(call.json()["choices"][0]["text"])
    *events, done = call.events
    assert done == "[DONE]"
    return "".join(event["choices"][0]["text"] for event in events)


async def idle(gateway: InProcess) -> None:
    async with asyncio.timeout(10):
        while gateway.telemetry.num_in_flight or gateway.num_live:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0)


async def test_who_left_gets_the_whole_answer_and_the_engine_made_it_once() -> None:
    async with in_process([tape({ANY_PROMPT: ANSWER}, step_ms=0.2)]) as gateway:
        for number in range(NUM_CLIENTS):
            call = begin(gateway, number)
            for _ in range(number):
                await asyncio.sleep(0)
            call.leave()
            await call.finished()
        repeats = []
        for number in range(NUM_CLIENTS):
            await idle(gateway)
            computed = gateway.core.counters().computed_tokens_total
            repeats.append(await begin(gateway, number).finished())
            if "x-headrace-replayed" in repeats[-1].headers:
                assert gateway.core.counters().computed_tokens_total == computed
        assert [text_of(call) for call in repeats] == [ANSWER.decode()] * NUM_CLIENTS
        assert sum("x-headrace-replayed" in call.headers for call in repeats) >= NUM_CLIENTS - 5
        assert gateway.link.aborts == []
