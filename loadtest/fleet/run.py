"""What a run of a fleet leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.fleet.call import Call
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.pool import Served
from loadtest.record import RequestRecord
from tenants.queued import Share


class CallRecord(NamedTuple):
    """One try."""

    ask_number: int
    tries: int
    """Before this one."""
    was_told: bool
    """It came back when it had been told to."""
    share: Share
    asked_tokens: int
    """Of output."""
    record: RequestRecord

    @classmethod
    def of(cls, call: Call) -> CallRecord:
        return cls(
            call.ask.number,
            call.tries,
            call.was_told,
            call.ask.customer.share,
            call.ask.max_tokens,
            call.record(),
        )


class WaitRecord(NamedTuple):
    """Of one request in a gateway's queue, in seconds."""

    predicted_s: float
    actual_s: float


@dataclass(frozen=True)
class FleetRun:
    config: FleetConfig
    calls: Sequence[CallRecord]
    """Those that ended, in that order."""
    waits: Sequence[WaitRecord]
    served: Mapping[str, Served]
    """From when to when each replica took work."""
    ended_s: float
    num_open: int
    """Asks that had not ended then."""

    def of(self, *tenant_ids: str) -> list[CallRecord]:
        return [call for call in self.calls if call.share.tenant_id in tenant_ids]
