"""Scaling in the launcher, on pools in memory: what is ordered, told, learned, and left alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import redis

from cluster.autoscaling.capacity import CapacityEstimate
from cluster.autoscaling.demand import GatewayDemand, ReplicaWork
from cluster.autoscaling.policy import Autoscaler, ScaleLimits
from cluster.autoscaling.runner import BLIND_S, SETTLED_LOOK_EVERY_S, ScalingRunner
from cluster.autoscaling.view import ClusterStatus
from cluster.pool_status import PoolStatus
from cluster.spec import ClusterSpec
from cluster.start_reports import StageReport
from tests.builders import FakeClock
from tests.cluster.fake_pools import FakePools
from tests.cluster.test_rollout_runner import WALL_TIME, make_spec


class Board:
    """Redis as the launcher sees it; one gateway tells a steady load."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.tokens_per_s = 0.0
        self.told: list[ClusterStatus] = []
        self.gone: list[str] = []
        self.gateways = {"g"}
        self.is_away = False
        self._offered = 0.0

    def rows(self) -> dict[str, GatewayDemand]:
        if self.is_away:
            raise redis.ConnectionError
        self._offered += self.tokens_per_s
        work = {"1-0": ReplicaWork(0, 0, 1, 0)}
        return {one: GatewayDemand(self._clock(), self._offered, 0.0, 0, 9, work) for one in self.gateways}

    def tell(self, status: ClusterStatus, gone: Iterable[str] = ()) -> None:
        self.told.append(status)
        self.gone += gone

    def close(self) -> None: ...


class Reports:
    def __init__(self) -> None:
        self.rows: list[StageReport] = []
        self.is_closed = False

    def pop_all(self) -> list[StageReport]:
        rows, self.rows = self.rows, []
        return rows

    def close(self) -> None:
        self.is_closed = True


class Rollouts:
    def __init__(self) -> None:
        self.serving: ClusterSpec = make_spec()
        self.is_idle = True


class CountedPools(FakePools):
    num_looks = 0

    def status(self, pool_id: str) -> PoolStatus | None:
        self.num_looks += 1
        return super().status(pool_id)


class Launcher:
    """A runner over one serving replica, and the time that passes."""

    def __init__(self, min_replicas: int = 1) -> None:
        self.clock = FakeClock(100.0)
        self.board = Board(self.clock)
        self.pools = CountedPools(room=9)
        self.pools.start("1", 1)
        self.pools.pass_time()
        self.rollouts = Rollouts()
        self.reports: dict[str, Reports] = {}
        self.said: list[str] = []
        self.runner = ScalingRunner(
            Autoscaler(ScaleLimits(min_replicas, 4, scale_down_delay_s=20.0), CapacityEstimate(1000.0)),
            self.rollouts,
            self.pools,
            self.board,
            lambda spec: self.reports.setdefault(spec.pool_id, Reports()),
            clock=self.clock,
            wall_clock=lambda: WALL_TIME,
            say=self.said.append,
        )

    def look(self, times: int = 1) -> ClusterStatus:
        for _ in range(times):
            self.clock.advance(1.0)
            self.runner.tick()
        return self.board.told[-1]


def test_demand_is_followed_up_and_down_in_place() -> None:
    launcher = Launcher()
    launcher.board.tokens_per_s = 2000.0
    launcher.look(8)
    assert launcher.pools.by_id["1"].target == 3
    launcher.pools.pass_time()
    launcher.board.tokens_per_s = 100.0
    launcher.look(60)
    launcher.pools.pass_time()
    assert launcher.pools.sizes() == {"1": 1}
    up, *down = launcher.said
    assert up == "1 → 3 replica(s): 2000 tokens/s expected in 53 s need 3 replica(s)"
    assert [text.partition(":")[0] for text in down] == ["3 → 2 replica(s)", "2 → 1 replica(s)"]


def test_how_the_cluster_stands_is_told_each_second() -> None:
    launcher = Launcher()
    launcher.board.tokens_per_s = 2000.0
    status = launcher.look(9)
    assert len(launcher.board.told) == 9
    assert (status.at, status.model, status.target, status.reason) == (WALL_TIME, "tape", 3, "enough")
    assert status.num_by_state() == {"provisioning": 2, "starting": 0, "serving": 1, "leaving": 0}
    assert status.demand is not None
    assert (status.demand.offered_tokens_per_s, status.demand.expected_tokens_per_s) == (2000.0, 2000.0)
    assert (status.capacity.tokens_per_s, status.capacity.tokens_per_s_per_replica) == (1000.0, 1000.0)
    assert (status.headroom.wanted, status.headroom.actual) == (1.2, 0.5)
    assert status.next_eta_s == 52.0


def test_what_replicas_tell_of_their_start_is_shown_and_learned() -> None:
    launcher = Launcher()
    launcher.board.tokens_per_s = 1000.0
    launcher.look(8)
    launcher.reports["1"].rows = [StageReport("1-1", "import", 0.5)]
    assert [one.state for one in launcher.look().replicas] == ["serving", "starting"]
    launcher.reports["1"].rows = [StageReport("1-1", "golden", 1.0)]
    launcher.pools.pass_time()
    learned = launcher.look().cold_start
    assert learned.stages_s == {
        "node": 0.5,
        "import": 0.5,
        "weights": 0.0,
        "KV pool": 0.0,
        "warm-up": 0.0,
        "golden": 1.0,
        "join": 0.0,
    }


def test_a_failing_start_is_told() -> None:
    launcher = Launcher()
    launcher.reports["1"].rows = [StageReport("1-1", "weights", 0.0, error="out of memory", remedy="less")]
    assert launcher.look().trouble == "weights: out of memory"


def test_a_rollout_is_left_alone_and_its_pool_is_followed_after_it() -> None:
    launcher = Launcher()
    launcher.board.tokens_per_s = 3000.0
    launcher.rollouts.is_idle = False
    launcher.reports["1"].rows = [StageReport("1-0", "weights", 1.0)]
    assert launcher.look(20).reason == "a rollout runs"
    assert (launcher.pools.by_id["1"].target, len(launcher.reports["1"].rows)) == (1, 1)
    launcher.pools.start("2", 1)
    launcher.rollouts.serving = make_spec().model_copy(update={"pool_id": "2"})
    launcher.rollouts.is_idle = True
    launcher.look(8)
    assert (launcher.pools.by_id["1"].target, launcher.pools.by_id["2"].target) == (1, 4)
    assert launcher.reports["1"].is_closed


def test_without_a_word_from_gateways_nothing_is_decided() -> None:
    launcher = Launcher()
    launcher.board.gateways = set()
    status = launcher.look(60)
    assert (status.reason, status.demand) == ("no gateway tells its demand", None)
    assert launcher.pools.by_id["1"].target == 1


def test_a_gateway_that_died_is_forgotten() -> None:
    launcher = Launcher()
    launcher.look(2)
    rows = launcher.board.rows()
    launcher.board.rows = lambda: rows  # type: ignore[method-assign]
    launcher.look(6)
    assert set(launcher.board.gone) == {"g"}


def test_trouble_with_ray_or_redis_changes_nothing_and_is_over_when_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    launcher = Launcher()
    launcher.board.tokens_per_s = 3000.0
    launcher.board.is_away = True
    launcher.clock.advance(1.0)
    launcher.runner.tick()
    launcher.board.is_away = False
    launcher.pools.trouble = RuntimeError("no controller")
    launcher.clock.advance(SETTLED_LOOK_EVERY_S)
    launcher.runner.tick()
    assert (launcher.board.told, launcher.pools.by_id["1"].target) == ([], 1)
    assert len(caplog.records) == 1
    launcher.pools.trouble = None
    launcher.look(8)
    assert launcher.pools.by_id["1"].target == 4


def test_where_demand_cannot_be_read_for_a_while_there_is_a_replica_until_it_can() -> None:
    launcher = Launcher(min_replicas=0)
    launcher.pools.scale("1", 0)
    launcher.pools.pass_time()
    launcher.board.gateways = set()
    launcher.look(20)
    launcher.board.is_away = True
    launcher.look(int(BLIND_S) - 1)
    assert launcher.said == []
    launcher.look(9)
    assert launcher.said == ["0 → 1 replica(s): demand cannot be read"]
    assert launcher.pools.by_id["1"].target == 1


def test_serve_is_asked_seldom_while_nothing_moves_and_each_second_while_something_does() -> None:
    launcher = Launcher()
    launcher.look(20)
    assert launcher.pools.num_looks == 4
    launcher.board.tokens_per_s = 2000.0
    launcher.look(8)
    before = launcher.pools.num_looks
    launcher.look(10)
    assert launcher.pools.num_looks == before + 10
