"""The link between gateway and replica: four calls and two kinds of message, all msgspec bytes.

`attach` yields one message per engine step that made something for this gateway, and a message
every `HEARTBEAT_S` when nothing happens. The gateway drops output indices that it already has
and treats a gap as a dead link.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from cluster.backlog import Backlog
from cluster.credit import Credit
from cluster.served_elsewhere import FlowService
from engine.counters import EngineCounters
from engine.request import Request, RequestOutput

HEARTBEAT_S = 0.25
SUSPECT_AFTER_S = 1.0
"""A link that has been silent for this long gets no new work."""
CALL_TIMEOUT_S = 5.0


class Hello(msgspec.Struct, frozen=True, tag="hello", array_like=True):
    """First message of every attach: who the replica is and what it can hold."""

    replica_id: str
    incarnation: int
    """Random, 4 bytes; a restarted replica has another one."""
    model_id: str
    revision: str
    hash_root: bytes
    block_size: int
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    max_num_batched_tokens: int


class StepMessage(msgspec.Struct, frozen=True, tag="step", array_like=True):
    """All that one step made for one gateway; without outputs a heartbeat, or news of the rest."""

    outputs: tuple[RequestOutput, ...]
    counters: EngineCounters
    credit: Credit | None = None
    """How much the gateway may have outstanding here; None: no limit."""
    is_leaving: bool = False
    """The replica takes no new work and ends once its running requests have ended, or moved."""
    served: tuple[FlowService, ...] = ()
    """What tenants got here through other gateways, since the last message."""


LinkMessage = Hello | StepMessage


LEAVING = "leaving"
"""Code of a submit that a replica refuses because it is about to end."""
OCCUPIED = "occupied"
"""Code of a suspect's submit to a replica where another suspect is: nobody could tell them apart."""


class SubmitReply(msgspec.Struct, frozen=True, array_like=True):
    """A submit is acknowledged at once: accepted, or refused with a code of `cluster/api/errors.py`."""

    accepted: bool
    code: str | None = None
    message: str | None = None


class Abort(msgspec.Struct, frozen=True, array_like=True):
    """Ends a request, or one of its siblings."""

    request_id: str
    sibling: int | None = None
    """None: all of them."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway tells its replicas, at most every 100 ms: what waits there."""

    backlogs: tuple[Backlog, ...]


class TokenLink(Protocol):
    """One gateway's side of one replica. Every unary call is bounded by `CALL_TIMEOUT_S`.

    All methods raise `LinkDown` when the replica cannot be reached any more.
    """

    async def submit(self, request: Request) -> SubmitReply:
        """Those of one turn of the loop may share a call."""

    async def abort(self, aborts: tuple[Abort, ...]) -> None: ...

    async def report(self, report: Report) -> None: ...

    def attach(self) -> AsyncIterator[LinkMessage]: ...


class LinkDown(Exception):
    """The replica behind a link is gone or cannot be reached."""


class NotReached(LinkDown):
    """So it is, and the call certainly did nothing there."""


class LinksClosed(LinkDown):
    """The gateway itself is ending."""


class ReplicaLeft(LinkDown):
    """The replica leaves by plan, and what runs there has to go on elsewhere."""


_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(LinkMessage)
_requests_decoder = msgspec.msgpack.Decoder(tuple[Request, ...])
_replies_decoder = msgspec.msgpack.Decoder(tuple[SubmitReply, ...])
_aborts_decoder = msgspec.msgpack.Decoder(tuple[Abort, ...])
_report_decoder = msgspec.msgpack.Decoder(Report)


def encode(
    message: LinkMessage | tuple[Request, ...] | tuple[SubmitReply, ...] | tuple[Abort, ...] | Report,
) -> bytes:
    return _encoder.encode(message)


def decode_message(data: bytes) -> LinkMessage:
    return _message_decoder.decode(data)


def decode_requests(data: bytes) -> tuple[Request, ...]:
    return _requests_decoder.decode(data)


def decode_replies(data: bytes) -> tuple[SubmitReply, ...]:
    return _replies_decoder.decode(data)


def decode_aborts(data: bytes) -> tuple[Abort, ...]:
    return _aborts_decoder.decode(data)


def decode_report(data: bytes) -> Report:
    return _report_decoder.decode(data)
