"""`TokenLink` over a Ray Serve handle: every call is pinned to one replica, bounded, and then cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from msgspec import DecodeError
from ray.serve.handle import DeploymentHandle

from cluster.link import (
    CALL_TIMEOUT_S,
    Abort,
    LinkDown,
    LinkMessage,
    NotReached,
    Report,
    SubmitReply,
    decode_message,
    decode_replies,
    encode,
)
from cluster.replica_registry import ReplicaGone
from cluster.submit_batch import SubmitBatch
from engine.request import Request

_NOT_OURS = "the replica sent what is no message of this version"


class ServeLink:
    """One gateway's calls to one replica.

    Serve raises what the replica raised as it was, so any exception is a replica that failed: a broken
    engine that is about to end its process says so here first.
    """

    def __init__(self, handle: DeploymentHandle, gateway_id: str, replica_id: str) -> None:
        self._handle = handle
        self._gateway_id = gateway_id
        self._replica_id = replica_id
        self._submits = SubmitBatch(self._submit_all)

    async def submit(self, request: Request) -> SubmitReply:
        return await self._submits.submit(request)

    async def abort(self, aborts: tuple[Abort, ...]) -> None:
        await self._call("abort", encode(aborts))

    async def report(self, report: Report) -> None:
        await self._call("report", self._gateway_id, encode(report))

    async def attach(self) -> AsyncIterator[LinkMessage]:
        stream = self._handle.options(stream=True).attach.remote(self._gateway_id, replica=self._replica_id)
        try:
            async for data in stream:
                yield decode_message(data)
        except DecodeError:
            raise LinkDown(_NOT_OURS) from None
        except Exception as error:
            raise LinkDown(_reason(error)) from None
        finally:
            stream.cancel()

    async def _submit_all(self, requests: tuple[Request, ...]) -> tuple[SubmitReply, ...]:
        data = await self._call("submit", self._gateway_id, encode(requests))
        try:
            replies = decode_replies(data)
        except DecodeError:
            raise LinkDown(_NOT_OURS) from None
        if len(replies) != len(requests):
            raise LinkDown(_NOT_OURS)
        return replies

    async def _call(self, method: str, *args: Any) -> bytes:
        response = getattr(self._handle, method).remote(*args, replica=self._replica_id)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                result = await response
        except TimeoutError:
            response.cancel()
            raise LinkDown(f"{method} got no answer within {CALL_TIMEOUT_S} s") from None
        except (ReplicaGone, NotReached) as error:
            raise NotReached(_reason(error)) from None
        except Exception as error:
            raise LinkDown(_reason(error)) from None
        assert isinstance(result, bytes)
        return result


def _reason(error: Exception) -> str:
    """One line; Ray's messages hold whole tracebacks."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
