"""Replica pools, as an operator of the cluster sees them: start one, set its size, take it down, look.

A pool is a group of replicas of one model and revision. `cluster/serve_control.py` does it on Ray Serve.
"""

from __future__ import annotations

from typing import Protocol

from cluster.pool_status import PoolStatus
from cluster.spec import ClusterSpec


class PoolControl(Protocol):
    """Calls return once the order is taken, not when it is done: look at `status`.

    They block for some tens of milliseconds and must be made off the event loop. Gateways find a new
    pool by themselves within a second (`cluster/pools.py`).
    """

    def deploy(self, spec: ClusterSpec, num_replicas: int) -> None:
        """Starts the pool `spec.pool_id`, which must not exist yet. Touches nothing else."""
        ...

    def scale(self, pool_id: str, num_replicas: int) -> None:
        """New replicas start, or some leave: those finish their answers first. The others run on.

        Raises `UnknownPool`.
        """
        ...

    def delete(self, pool_id: str) -> None:
        """All replicas leave, then the pool is gone. A pool that is not there is gone already."""
        ...

    def pools(self) -> frozenset[str]:
        """Ids of all pools, those that are being taken down among them."""
        ...

    def status(self, pool_id: str) -> PoolStatus | None:
        """None: there is no such pool, or no longer."""
        ...


class UnknownPool(LookupError):
    """There is no pool of this id, or it is being taken down."""
