"""A gateway in virtual time does what one that serves does, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.autoscaling.cold_start import STAGES
from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Decision, FleetView
from cluster.waiting.gateway_queue import GatewayQueue
from loadtest.fleet.call import Customer
from loadtest.fleet.config import FleetConfig
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.gateway import NO_DEADLINE_S
from loadtest.fleet.replica import VirtualReplica
from tenants.queued import Share
from tenants.terms import Limits
from tests.loadtest.fleet.small import ENGINE, STEP_S, a_config, prompts_of

DELAY_S = 0.05


class Shortening(GatewayQueue):
    """A queue in a brown-out that does not end."""

    def max_tokens(self, share: Share, asked: int) -> int:
        return min(asked, 10)


class Away:
    """The scaler orders the only replica away in its second second, and back `for_s` later."""

    def __init__(self, for_s: float = 1.0) -> None:
        self._back_s = 2.0 + for_s

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        return Decision(int(now >= self._back_s), "")


def leaving(for_s: float = 1.0) -> FleetConfig:
    """What is sent to the replica at 1.97 s comes there when it leaves, and its refusal back at 2.07 s."""
    return a_config(
        num_replicas=1,
        link_delay_s=DELAY_S,
        scaler=lambda: Away(for_s),
        cold_start_s=dict.fromkeys(STAGES, 0.1),
    )


def test_an_answer_that_is_shortened_takes_no_more_of_a_limit_than_it_may_get() -> None:
    limits = Limits(output_tokens_per_min=60, burst_s=100)
    fleet = VirtualFleet(a_config(line=Shortening), max_retries=0)
    long = prompts_of(Customer("limited", limits=limits), output_tokens=(90, 90))
    for _ in range(10):
        fleet.come(0.0, long.make)
    calls = fleet.run().calls
    assert [call.record.output_tokens for call in calls] == [10] * 10, "of 90 tokens each one would fit"


def test_who_was_sent_to_the_only_replica_as_it_leaves_waits_for_another() -> None:
    fleet = VirtualFleet(leaving(), max_retries=0)
    fleet.come(1.97, prompts_of().make)
    (call,) = fleet.run().calls
    assert (call.record.status, call.record.replica) == ("ok", "replica-1")
    assert (call.record.ttft_s or 0.0) < 3.0


def test_and_is_forgotten_if_its_client_leaves_meanwhile() -> None:
    one_seat = replace(leaving(for_s=2.0), engine=replace(ENGINE, max_num_seqs=1))
    fleet = VirtualFleet(one_seat, max_retries=0)
    fleet.come(1.97, prompts_of(timeout_s=0.5, output_tokens=(500, 500)).make)
    fleet.come(6.0, prompts_of(Customer("late")).make)
    left, late = (call.record for call in fleet.run().calls)
    assert (left.status, left.output_tokens) == ("timeout", 0)
    assert (late.status, (late.ttft_s or 0.0) < 5 * STEP_S) == ("ok", True), "the seat is free"


def test_and_is_told_once_its_time_is_over() -> None:
    customer = Customer("limited", limits=Limits(max_concurrency=1))
    fleet = VirtualFleet(leaving(for_s=2 * NO_DEADLINE_S), max_retries=0)
    for at in (1.97, 1.1 * NO_DEADLINE_S):
        fleet.come(at, prompts_of(customer).make)
    outcome = fleet.run(until=1.5 * NO_DEADLINE_S)
    (call,) = outcome.calls
    assert (call.record.status, call.record.reason) == ("503", "deadline_exceeded")
    assert call.record.finished_at == pytest.approx(1.97 + NO_DEADLINE_S, abs=0.2)
    assert outcome.num_open == 1, "its place is another one's"


def test_the_index_is_asked_once_for_each_request_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_at: list[float] = []

    def num_claimed_blocks(replica: VirtualReplica, block_hashes: Sequence[bytes]) -> int:
        asked_at.append(fleet.clock.now)
        return 0

    monkeypatch.setattr(VirtualReplica, "num_claimed_blocks", num_claimed_blocks)
    fleet = VirtualFleet(a_config(num_replicas=2))
    for number in range(40):  # of which not all find a seat at once
        fleet.come(1.0 + number % 2, prompts_of(Customer(f"tenant-{number}")).make)
    assert all(call.record.is_ok for call in fleet.run().calls)
    assert sorted(asked_at) == [1.0] * 40 + [2.0] * 40
