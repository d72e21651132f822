"""Replicas that start stage by stage, and go the other way round."""

from __future__ import annotations

from cluster.autoscaling.cold_start import STAGES
from loadtest.fleet.clock import VirtualClock
from loadtest.fleet.pool import VirtualPool
from loadtest.fleet.replica import VirtualReplica
from tests.loadtest.fleet.small import a_config


def test_a_start_takes_all_its_stages_and_tells_each_but_the_node_s() -> None:
    clock, added = VirtualClock(), list[VirtualReplica]()
    config = a_config(num_replicas=1, cold_start_s=dict.fromkeys(STAGES, 2.0))
    pool = VirtualPool(config, clock, added.append, lambda replica: None)
    pool.scale(2)
    clock.run(until=13.9)
    assert pool.status().starting == {"replica-1"}
    assert [report.stage for report in pool.pop_reports()] == list(STAGES[1:-1])
    clock.run(until=14.0)
    assert pool.status().running == {"replica-0", "replica-1"}
    assert pool.served["replica-1"].since == 14.0
    assert [replica.replica_id for replica in added] == ["replica-0", "replica-1"]


def test_of_too_many_those_go_first_that_do_not_serve_yet_then_the_newest() -> None:
    clock, ended = VirtualClock(), list[VirtualReplica]()
    pool = VirtualPool(a_config(num_replicas=3), clock, lambda replica: None, ended.append)
    pool.scale(4)
    pool.scale(2)
    status = pool.status()
    assert (status.starting, status.leaving) == (frozenset(), {"replica-2"})
    clock.run(until=1.0)
    assert [replica.replica_id for replica in ended] == ["replica-2"]
    assert pool.status().leaving == frozenset()
