"""Siblings through gateway, link, host and engine: who ends alone, who ends together, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.tape import ANY_PROMPT, TapeSpec
from tests.cluster.fakes import Call
from tests.cluster.in_process import InProcess, in_process, tape

TEXT = "/v1/completions"
LONG = b"x" * 5000
"""Longer than any test reads."""


def tapes(*answers: bytes) -> list[TapeSpec]:
    """One for each sibling. A step takes a moment, so that the engine does not outrun its readers."""
    return [tape({ANY_PROMPT: answer}, step_ms=0.2) for answer in answers]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "a prompt of more than one block", **fields}


def texts(call: Call) -> list[tuple[str, str]]:
    return [(choice["text"], choice["finish_reason"]) for choice in call.json()["choices"]]


async def is_idle(gateway: InProcess) -> None:
    """Waits until the engine has nothing left: every block is back."""
    async with asyncio.timeout(10):
        while gateway.num_live:  # noqa: ASYNC110  the host tells nobody
            await asyncio.sleep(0)
    assert gateway.host.counters.blocks_in_use == 0


async def test_each_has_its_own_tape_and_the_prompt_counts_once() -> None:
    async with in_process(tapes(b"one", b"two and more", b"")) as gateway:
        call = await gateway.post(TEXT, body(n=3))
        assert texts(call) == [("one", "stop"), ("two and more", "stop"), ("", "stop")]
        usage = call.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (31, 4 + 13 + 1)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        again = (await gateway.post(TEXT, body(n=3))).json()["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] == 28
        await is_idle(gateway)


@pytest.mark.parametrize("stream", [True, False])
async def test_one_that_completes_a_stop_string_is_ended_alone_in_the_engine(stream: bool) -> None:
    async with in_process(tapes(b"going on", b"an END" + LONG, b"and on")) as gateway:
        call = await gateway.post(TEXT, body(n=3, stop=["END"], stream=stream))
        if stream:
            ends = [c["choices"][0] for c in call.events[:-1] if c["choices"][0]["finish_reason"]]
            assert sorted((c["index"], c["finish_reason"]) for c in ends) == [(i, "stop") for i in range(3)]
        else:
            assert texts(call) == [("going on", "stop"), ("an ", "stop"), ("and on", "stop")]
            assert call.json()["usage"]["completion_tokens"] == 9 + 6 + 7
        await is_idle(gateway)
        (abort,) = gateway.link.aborts
        assert abort.sibling == 1


@pytest.mark.parametrize("sibling", [0, 1, 2])
@pytest.mark.parametrize("output_index", [0, 2])
async def test_one_whose_row_fails_ends_them_all_and_leaves_nothing(sibling: int, output_index: int) -> None:
    async with in_process(tapes(LONG, LONG, LONG)) as gateway:
        gateway.executor.errors[sibling, output_index] = "non_finite_logits"
        whole = await gateway.post(TEXT, body(n=3))
        assert (whole.status, whole.error["code"]) == (500, "non_finite_logits")
        stream = await gateway.post(TEXT, body(n=3, stream=True))
        if stream.status == 200:
            ends = [event for event in stream.events if event == "[DONE]" or "error" in event]
            assert [event["error"]["code"] for event in ends] == ["non_finite_logits"]
        else:
            assert (stream.status, stream.error["code"]) == (500, "non_finite_logits")
        await is_idle(gateway)


async def test_a_client_that_leaves_ends_them_all() -> None:
    async with in_process(tapes(LONG)) as gateway:
        call = gateway.begin("POST", TEXT, body=body(n=16, stream=True))
        async with asyncio.timeout(10):
            while not call.is_committed:  # noqa: ASYNC110  the call tells nobody
                await asyncio.sleep(0)
        call.leave()
        await call.finished()
        await is_idle(gateway)
        assert [abort.sibling for abort in gateway.link.aborts] == [None]


async def test_a_step_is_one_message_however_many_siblings_it_served() -> None:
    async with in_process(tapes(b"as long as this")) as gateway:
        messages = gateway.link.messages
        messages.clear()
        await gateway.post(TEXT, body(n=16))
        with_outputs: Sequence[int] = [len(message.outputs) for message in messages if message.outputs]
        assert sum(with_outputs) == 16 * 16
        assert len(with_outputs) <= 16 + 1  # the first sibling is a step ahead of those it forks
