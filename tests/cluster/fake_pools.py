"""Pools of replicas in memory: replicas start, fail and leave when the test lets time pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.pool_control import UnknownPool
from cluster.pool_status import PoolStatus
from cluster.spec import ClusterSpec


@dataclass
class FakePool:
    target: int
    num_running: int = 0
    failure: str | None = None
    is_leaving: bool = False
    starts: bool = True
    """Whether its replicas ever come up."""


@dataclass
class FakePools:
    """A `PoolControl`. `room` replicas fit at once; those that leave hold their place until `pass_time`."""

    room: int
    by_id: dict[str, FakePool] = field(default_factory=dict)
    num_leaving: int = 0
    specs: list[ClusterSpec] = field(default_factory=list)
    bad: frozenset[str] = frozenset()
    """Pools whose replicas never come up."""
    trouble: Exception | None = None
    """What every call raises."""

    @property
    def num_present(self) -> int:
        return self.num_leaving + sum(max(pool.target, pool.num_running) for pool in self.by_id.values())

    @property
    def num_serving(self) -> int:
        return sum(pool.num_running for pool in self.by_id.values() if not pool.is_leaving)

    def sizes(self) -> dict[str, int]:
        return {pool_id: pool.num_running for pool_id, pool in self.by_id.items()}

    def start(self, pool_id: str, num_replicas: int) -> None:
        assert pool_id not in self.by_id
        self.by_id[pool_id] = FakePool(num_replicas, starts=pool_id not in self.bad)

    def pass_time(self) -> None:
        """Replicas that start come up; those that leave are gone."""
        self.num_leaving = 0
        for pool_id, pool in list(self.by_id.items()):
            if pool.is_leaving:
                del self.by_id[pool_id]
            elif pool.starts:
                pool.num_running = pool.target

    def deploy(self, spec: ClusterSpec, num_replicas: int) -> None:
        self._check()
        self.specs.append(spec)
        self.start(spec.pool_id, num_replicas)

    def scale(self, pool_id: str, num_replicas: int) -> None:
        self._check()
        if pool_id not in self.by_id:
            raise UnknownPool(pool_id)
        pool = self.by_id[pool_id]
        self.num_leaving += max(0, pool.num_running - num_replicas)
        pool.target = num_replicas
        pool.num_running = min(pool.num_running, num_replicas)

    def delete(self, pool_id: str) -> None:
        self._check()
        if pool_id in self.by_id:
            self.scale(pool_id, 0)
            self.by_id[pool_id].is_leaving = True

    def pools(self) -> frozenset[str]:
        return frozenset(self.by_id)

    def status(self, pool_id: str) -> PoolStatus | None:
        self._check()
        pool = self.by_id.get(pool_id)
        if pool is None:
            return None
        running = frozenset(f"{pool_id}-{number}" for number in range(pool.num_running))
        starting = frozenset(f"{pool_id}-{number}" for number in range(pool.num_running, pool.target))
        return PoolStatus(running, pool.target, pool.failure, starting)

    def _check(self) -> None:
        if self.trouble is not None:
            raise self.trouble
