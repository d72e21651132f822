"""What a policy is asked about, without an engine."""

from __future__ import annotations

from dataclasses import dataclass

from engine.request import Flow

NO_FLOW = Flow()


@dataclass(frozen=True)
class Candidate:
    request_id: str
    priority: int = 0
    arrival_order: int = 0
    num_preemptions: int = 0
    num_computed_tokens: int = 0
    num_uncomputed_tokens: int = 1
    flow: Flow = NO_FLOW
