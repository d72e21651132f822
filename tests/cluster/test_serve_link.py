"""The link over Serve's handle: pinned, bounded, cancelled; whatever breaks is a `LinkDown`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError, RequestCancelledError

from cluster.backlog import Backlog
from cluster.engine_host import EngineDead
from cluster.link import (
    Abort,
    LinkDown,
    LinkMessage,
    NotReached,
    Report,
    StepMessage,
    SubmitReply,
    decode_aborts,
    decode_requests,
    encode,
)
from cluster.replica_registry import ReplicaGone
from cluster.serve_link import ServeLink
from engine.counters import EngineCounters
from tests.cluster.fake_replica import hello, request, row

STEP = StepMessage(outputs=(row("r", 0, 5),), counters=EngineCounters(0, 0, 0, 100, 0, 0, 0.0, 0, 0, 0))
BROKEN = [
    ActorDiedError(),
    BackPressureError(num_queued_requests=1, max_queued_requests=1),
    RequestCancelledError(),
    ReplicaGone("a"),
    EngineDead("the last 3 steps failed"),
    NotReached("this gateway has no stream here"),
]


class Response:
    """What a handle's call gives: an awaitable, or a stream, that can be cancelled."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.is_cancelled = False

    def __await__(self) -> Any:
        return self._get().__await__()

    async def _get(self) -> Any:
        if isinstance(self._answer, asyncio.Event):
            await self._answer.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for item in self._answer:
            if isinstance(item, Exception):
                raise item
            yield item

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """Every method is there; `calls` keeps what was called, `responses` what came back."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.responses: list[Response] = []
        self.given: dict[str, Any] = {}

    def options(self, **given: Any) -> Handle:
        self.given = given
        return self

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Response:
            self.calls.append((method, args, kwargs))
            self.responses.append(Response(self._answer))
            return self.responses[-1]

        return type("Method", (), {"remote": staticmethod(remote)})


def link(answer: Any) -> tuple[ServeLink, Handle]:
    handle = Handle(answer)
    return ServeLink(handle, "g", "a"), handle


async def read(stream: AsyncIterator[LinkMessage]) -> list[LinkMessage]:
    return [message async for message in stream]


async def test_a_submit_is_pinned_and_its_reply_decoded() -> None:
    refusal = SubmitReply(accepted=False, code="empty_prompt", message="no")
    calls, handle = link(encode((refusal,)))
    assert await calls.submit(request()) == refusal
    ((method, (gateway_id, payload), kwargs),) = handle.calls
    assert (method, gateway_id, kwargs) == ("submit", "g", {"replica": "a"})
    assert decode_requests(payload) == (request(),)


async def test_aborts_and_reports_are_pinned_too() -> None:
    calls, handle = link(b"")
    aborts = (Abort("r1"), Abort("r2", 3))
    await calls.abort(aborts)
    await calls.report(Report((Backlog("acme", 5, 1),)))
    assert decode_aborts(handle.calls[0][1][0]) == aborts
    assert [(method, kwargs) for method, _, kwargs in handle.calls] == [
        ("abort", {"replica": "a"}),
        ("report", {"replica": "a"}),
    ]


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
async def test_only_a_call_that_certainly_did_nothing_is_not_reached(error: Exception) -> None:
    with pytest.raises(LinkDown) as caught:
        await link(error)[0].submit(request())
    assert isinstance(caught.value, NotReached) is isinstance(error, (ReplicaGone, NotReached))


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
async def test_whatever_ray_says_of_a_lost_replica_is_link_down(error: Exception) -> None:
    name = type(error).__name__
    with pytest.raises(LinkDown, match=name):
        await link(error)[0].submit(request())
    with pytest.raises(LinkDown, match=name):
        await link(error)[0].abort((Abort("r"),))
    with pytest.raises(LinkDown, match=name):
        await read(link([encode(hello("a")), error])[0].attach())


async def test_a_call_without_an_answer_is_cancelled_at_its_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.serve_link.CALL_TIMEOUT_S", 0.01)
    calls, handle = link(asyncio.Event())
    with pytest.raises(LinkDown, match=r"submit got no answer within 0\.01 s"):
        await calls.submit(request())
    assert handle.responses[0].is_cancelled


async def test_the_stream_is_pinned_decoded_and_cancelled_at_its_end() -> None:
    calls, handle = link([encode(hello("a")), encode(STEP)])
    assert await read(calls.attach()) == [hello("a"), STEP]
    assert handle.given == {"stream": True}
    assert handle.calls == [("attach", ("g",), {"replica": "a"})]
    assert handle.responses[0].is_cancelled


async def test_a_stream_that_is_left_early_is_cancelled() -> None:
    calls, handle = link([encode(hello("a")), encode(STEP)])
    stream = calls.attach()
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert handle.responses[0].is_cancelled


async def test_bytes_that_are_no_message_are_a_dead_link() -> None:
    """Another version's replica, say: it must not end the task that follows it."""
    calls, _ = link([encode(hello("a")), b"\x80\x04N."])
    with pytest.raises(LinkDown, match="no message of this version"):
        await read(calls.attach())
    for answer in (b"junk", encode(())):
        with pytest.raises(LinkDown, match="no message of this version"):
            await link(answer)[0].submit(request())


async def test_a_reason_is_one_short_line() -> None:
    for said, told in (
        ("gone\nTraceback", "gone"),
        ("x" * 500, "x" * (200 - len("ReplicaGone: "))),
        ("", ""),
    ):
        with pytest.raises(LinkDown) as caught:
            await link(ReplicaGone(said))[0].submit(request())
        assert str(caught.value) == f"ReplicaGone: {told}"
