"""How a cluster stands, as `headrace status` and `/admin/v1/status` show it. Rates are in tokens of service.

The launcher writes it; gateways pass it on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

ReplicaPhase = Literal["provisioning", "starting", "serving", "leaving"]
PHASES: tuple[ReplicaPhase, ...] = get_args(ReplicaPhase)


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    replica_id: str | None
    """None: ordered, and not begun yet."""
    state: ReplicaPhase
    """provisioning: ordered, and not heard of yet; leaving: it takes no new work."""
    stage: str | None = None
    """Of its start, as in `cold_start`."""
    in_stage_s: float | None = None
    eta_s: float | None = None
    """Until it is expected to serve."""


class DemandView(msgspec.Struct, frozen=True, kw_only=True):
    offered_tokens_per_s: float
    """What came in the last second or so, with what was shed; who comes back counts once."""
    shed_tokens_per_s: float
    expected_tokens_per_s: float
    """When a replica that was ordered now would serve, with what has to be drained."""
    backlog_tokens: int
    """Of what waits at gateways and replicas, with the answers that are expected."""


class CapacityView(msgspec.Struct, frozen=True, kw_only=True):
    tokens_per_s: float
    """Of all replicas that serve."""
    tokens_per_s_per_replica: float
    """As measured."""


class HeadroomView(msgspec.Struct, frozen=True, kw_only=True):
    wanted: float
    """Capacity ÷ demand, as the operator states it."""
    actual: float | None
    """With the capacity that serves and the demand that is expected; None without demand."""


class ColdStartView(msgspec.Struct, frozen=True, kw_only=True):
    total_s: float
    """From an order that is given now until that replica serves."""
    stages_s: dict[str, float]
    """As learned of this model, in their order."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    """Unix time, in seconds."""
    model: str
    min_replicas: int
    max_replicas: int
    target: int
    """How many replicas there are to be."""
    reason: str
    """Why so many."""
    trouble: str | None
    """What keeps replicas from starting, as the last one told; or why nothing is decided."""
    replicas: tuple[ReplicaView, ...]
    demand: DemandView | None
    """None: no gateway tells any."""
    capacity: CapacityView
    headroom: HeadroomView
    cold_start: ColdStartView

    def num_by_state(self) -> Mapping[ReplicaPhase, int]:
        counted = Counter(one.state for one in self.replicas)
        return {phase: counted[phase] for phase in PHASES}

    @property
    def next_eta_s(self) -> float | None:
        """Until the first replica on its way is expected to serve; None: there is none."""
        return min((one.eta_s for one in self.replicas if one.eta_s is not None), default=None)
