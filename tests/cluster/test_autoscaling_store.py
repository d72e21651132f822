"""Demand and status through a real Redis, and a gateway's part in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from cluster.autoscaling.demand import GatewayDemand, ReplicaWork
from cluster.autoscaling.metrics import ScalingCollector
from cluster.autoscaling.store import STATUS_TTL_S, RedisStatus, StatusBoard
from cluster.autoscaling.teller import FORGET_AFTER_S, DemandTeller
from cluster.autoscaling.view import ClusterStatus
from tenants.redis_client import connect
from tenants.store import StoreUnavailable
from tests.builders import FakeClock
from tests.cluster.scaling_world import make_status

ROW = GatewayDemand(3.5, 1000.5, 20.0, 7.5, 99.5, {"a": ReplicaWork(5, 4, 3, 2)})


@pytest.fixture
def board(redis_url: str, redis: Redis) -> Iterator[StatusBoard]:
    board = StatusBoard(redis_url, "c")
    yield board
    board.close()


async def test_rows_and_status_cross_whole(redis: Redis, board: StatusBoard) -> None:
    store = RedisStatus(redis, "c")
    assert await store.tell("g", ROW) is None
    assert board.rows() == {"g": ROW}
    board.tell(make_status())
    assert await store.tell("h", ROW) == make_status()
    assert await store.status() == make_status()
    assert board.rows() == {"g": ROW, "h": ROW}
    board.tell(make_status(), gone=["g"])
    assert board.rows() == {"h": ROW}


async def test_both_go_by_themselves_when_nobody_writes_them(redis: Redis, board: StatusBoard) -> None:
    await RedisStatus(redis, "c").tell("g", ROW)
    board.tell(make_status())
    assert 0 < await redis.ttl("headrace:demand:c") <= 60
    assert 0 < await redis.ttl("headrace:status:c") <= STATUS_TTL_S


async def test_another_cluster_on_the_same_redis_hears_nothing(redis: Redis, board: StatusBoard) -> None:
    await RedisStatus(redis, "d").tell("g", ROW)
    board.tell(make_status())
    assert board.rows() == {}
    with pytest.raises(StoreUnavailable, match="the launcher tells nothing"):
        await RedisStatus(redis, "d").status()


async def test_what_is_not_ours_is_left_out(redis: Redis, board: StatusBoard) -> None:
    await RedisStatus(redis, "c").tell("g", ROW)
    await redis.hset("headrace:demand:c", "x", b"\x80\x04N.")
    await redis.hset("headrace:demand:c", b"\xff", b"{}")
    await redis.set("headrace:status:c", b'{"at": 1}')
    assert board.rows() == {"g": ROW}
    assert await RedisStatus(redis, "c").tell("g", ROW) is None


async def test_without_redis_both_calls_say_so() -> None:
    store = RedisStatus(connect("unix:///nobody.sock"), "c")
    with pytest.raises(StoreUnavailable):
        await store.status()
    with pytest.raises(StoreUnavailable):
        await store.tell("g", ROW)


class Store:
    def __init__(self) -> None:
        self.told: list[tuple[str, GatewayDemand]] = []
        self.status: ClusterStatus | None = None
        self.is_away = False

    async def tell(self, gateway_id: str, demand: GatewayDemand) -> ClusterStatus | None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.told.append((gateway_id, demand))
        return self.status


async def test_a_gateway_tells_its_row_and_remembers_what_it_heard_for_a_while() -> None:
    store, clock = Store(), FakeClock(100.0)
    teller = DemandTeller(store, "g", lambda: ROW, clock)
    await teller.tell()
    assert (store.told, teller.latest) == ([("g", ROW)], None)
    store.status = make_status()
    await teller.tell()
    assert teller.latest == make_status()
    store.is_away = True
    clock.advance(FORGET_AFTER_S)
    await teller.tell()
    assert teller.latest == make_status()
    clock.advance(0.1)
    assert teller.latest is None


def samples(status: ClusterStatus | None) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("state", "")): sample.value
        for metric in ScalingCollector(lambda: status).collect()
        for sample in metric.samples
    }


def test_how_the_cluster_stands_is_told_as_gauges() -> None:
    assert samples(make_status()) == {
        ("headrace_replicas", "provisioning"): 0,
        ("headrace_replicas", "starting"): 1,
        ("headrace_replicas", "serving"): 1,
        ("headrace_replicas", "leaving"): 0,
        ("headrace_replica_eta_seconds", ""): 12.0,
        ("headrace_demand_tokens_per_second", ""): 1000.0,
        ("headrace_capacity_tokens_per_second", ""): 800.0,
    }
    assert samples(None) == {}
    quiet = samples(make_status(replicas=(), demand=None))
    assert ("headrace_demand_tokens_per_second", "") not in quiet
    assert quiet["headrace_replica_eta_seconds", ""] == 0.0
