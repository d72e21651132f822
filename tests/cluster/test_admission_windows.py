"""A replica's admission windows: who gets how much, when it moves, and that the engine never has more."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster.admission_windows import DIVIDED_EVERY_S, FLOOR, RAMP_FROM, AdmissionWindows
from cluster.backlog import MAX_TENANTS, Backlog, bounded
from cluster.credit import NO_CREDIT, Credit
from engine.request import Flow, Request
from loadtest.studies.virtual_engine import EIGHT_BILLION
from tests.cluster.fake_replica import row
from tests.cluster.virtual_gateways import (
    SMALL_MODEL,
    ReplicaConfig,
    VirtualGateways,
    a_request,
)

FULL = Credit(513, 41)
"""Of a replica with 256 tokens a step and 32 seats: two steps, a seat more for each eight, a quarter and
a ninth as much again for who has no prompt there, and the floor."""
HALF = Credit(257, 21)
"""Of two gateways, with two floors."""
FLOOD = (Backlog("flood", 100_000, 1000),)


def opened(*gateway_ids: str, ramp_s: float = 0.0) -> AdmissionWindows:
    windows = AdmissionWindows(256, 32, ramp_s)
    for gateway_id in gateway_ids:
        windows.open(gateway_id, 0.0)
        windows.divide(0.0)
    return windows


def told(windows: AdmissionWindows, now: float) -> dict[str, Credit]:
    windows.divide(now)
    return {gateway_id: windows.window_of(gateway_id) for gateway_id in ("x", "y")}


def division(number: int) -> float:
    return number * DIVIDED_EVERY_S


class TestWindows:
    def test_a_lone_gateway_has_all_of_it_at_once(self) -> None:
        assert opened("x").window_of("x") == FULL

    def test_a_second_one_can_start_at_once_and_has_its_half_a_division_after_the_first_gave_it(self) -> None:
        windows = opened("x", "y")
        assert told(windows, 0.0) == {"x": HALF, "y": FLOOR}
        assert told(windows, division(1)) == {"x": HALF, "y": HALF}

    def test_what_moves_goes_to_who_waits_and_leaves_the_other_enough_to_start(self) -> None:
        windows = opened("x", "y")
        windows.divide(division(1))
        windows.report("x", FLOOD)
        assert told(windows, division(2)) == {"x": HALF, "y": FLOOR}
        assert told(windows, division(3)) == {"x": Credit(513, 41), "y": FLOOR}

    def test_tenants_beyond_those_that_are_told_one_by_one_have_their_weight(self) -> None:
        """100 tenants at one gateway and 50 at the other: two thirds, and one with room to start."""
        windows = opened("x", "y")
        windows.divide(division(1))
        for gateway_id, num_tenants in (("x", MAX_TENANTS + 36), ("y", 50)):
            windows.report(
                gateway_id, bounded(Backlog(f"{gateway_id}-{n}", 5000, 50) for n in range(num_tenants))
            )
        windows.divide(division(2))
        assert told(windows, division(3)) == {"x": Credit(342, 27), "y": Credit(172, 14)}

    def test_between_two_divisions_nothing_moves(self) -> None:
        windows = opened("x", "y")
        windows.divide(division(1))
        windows.report("x", FLOOD)
        assert told(windows, division(2) - 0.001) == {"x": HALF, "y": HALF}

    def test_what_is_there_is_claimed_whatever_the_window(self) -> None:
        """The other one gets a seat as one ends."""
        windows = opened("x")
        ids = [f"r{number}" for number in range(30)]
        for request_id in ids:
            windows.add("x", a_request(request_id, 0, 8))
        windows.open("y", 0.0)
        windows.report("y", FLOOD)
        assert [one.requests for one in told(windows, 0.0).values()] == [20, 1]
        assert [one.requests for one in told(windows, division(1)).values()] == [20, 12]
        windows.hear("x", [row(request_id, 0, 5, finish="stop") for request_id in ids[:5]])
        assert [one.requests for one in told(windows, division(2)).values()] == [20, 17]

    def test_who_has_requests_there_asks_for_them(self) -> None:
        """A gateway whose last request waits has its seats still, and room for one more."""
        windows = opened("x", "y")
        windows.divide(division(1))
        for number in range(17):
            windows.add("x", replace(a_request(f"r{number}", 10, 8), flow=Flow("quiet")))
        windows.report("x", (Backlog("quiet", 10, 1),))
        windows.report("y", FLOOD)
        assert told(windows, division(2))["x"].requests == 19

    def test_a_gateway_that_breaks_takes_its_credit_and_its_counts_along(self) -> None:
        windows = opened("x", "y")
        for number in range(18):
            windows.add("x", a_request(f"r{number}", 10, 8))
        windows.close("x")
        assert told(windows, division(1)) == {"x": NO_CREDIT, "y": FULL}
        windows.open("x", division(1))
        assert told(windows, division(2)) == {"x": FLOOR, "y": HALF}

    def test_what_comes_late_of_a_gateway_that_has_gone_does_nothing(self) -> None:
        windows = opened("y")
        windows.add("x", a_request("r", 10, 8))
        windows.hear("x", [row("r", 0, 5)])
        windows.report("x", FLOOD)
        assert told(windows, division(1)) == {"x": NO_CREDIT, "y": FULL}

    def test_a_new_replica_s_windows_grow_to_their_size(self) -> None:
        windows = opened("x", ramp_s=4.0)
        seen = [(now, told(windows, now)["x"]) for now in (0.0, 2.0, 4.0, 9.0)]
        assert seen == [(0.0, Credit(65, 6)), (2.0, Credit(289, 23)), (4.0, FULL), (9.0, FULL)]
        assert RAMP_FROM == 1 / 8

    def test_the_ramp_is_the_replica_s_and_does_not_begin_again_for_each_gateway(self) -> None:
        windows = opened("x", ramp_s=4.0)
        windows.close("x")
        windows.open("x", 5.0)
        assert told(windows, 5.0)["x"] == FULL


# --- with gateways and an engine, in virtual time ---------------------------------------------


class Watch:
    """Looks at what the engine has whenever it gets more."""

    def __init__(self, cluster: VirtualGateways) -> None:
        self._cluster = cluster
        self.num_looks = 0
        cluster.on_taken_in = self._look

    def _look(self) -> None:
        """Never more than the windows, and for each gateway one request that takes it beyond its own, and
        what is kept for first prompts: a quarter of a step, one that takes that further, and a long one."""
        cluster, config = self._cluster, self._cluster.config
        self.num_looks += 1
        tokens, seats, largest = 0, 0, defaultdict(lambda: Credit(0, 0))
        for request_id, (gateway_id, request) in cluster.there.items():
            counted = min(cluster.uncomputed.get(request_id, 0), config.max_num_batched_tokens)
            tokens, seats = tokens + counted, seats + request.n
            most = largest[gateway_id]
            largest[gateway_id] = Credit(max(most.tokens, counted), max(most.requests, request.n))
        floors = len(cluster.gateways)
        most_tokens = 2 * config.max_num_batched_tokens + floors
        kept = config.max_num_batched_tokens // 4
        beyond = sum(kept + 3 * max(0, one.tokens - 1) for one in largest.values())
        assert tokens <= most_tokens + beyond
        lead = -(-config.max_num_seqs // 8)
        most_seats = -(-(config.max_num_seqs + lead) * 10 // 9) + floors
        assert seats <= most_seats + sum(one.requests - 1 for one in largest.values())


def story(rng: Random, cluster: VirtualGateways, num_gateways: int) -> None:
    """Arrivals in bursts of any size, gateways that are killed and come back, requests that are aborted."""
    names = [f"g{number}" for number in range(num_gateways)]
    for name in names:
        cluster.at(rng.uniform(0.0, 0.5), lambda name=name: cluster.attach(name))  # type: ignore[misc]
    for burst in range(rng.randint(1, 12)):
        name = rng.choice(names)
        requests = [
            a_request(
                f"{burst}-{number}",
                rng.choice((1, 60, 130, 1000)),
                rng.randint(1, 40),
                rng.choice((1, 1, 3)),
                rng.choice("abc"),
            )
            for number in range(rng.choice((1, 5, 80)))
        ]
        cluster.at(rng.uniform(0.5, 3.0), lambda n=name, r=requests: _offer(cluster, n, r))  # type: ignore[misc]
        for request in rng.sample(requests, len(requests) // 3):
            cluster.at(rng.uniform(0.5, 4.0), lambda r=request: cluster.abort(r.request_id))  # type: ignore[misc]
    for name in rng.choices(names, k=rng.randint(0, 3)):
        cluster.at(rng.uniform(0.5, 3.0), lambda name=name: _restart(cluster, name))  # type: ignore[misc]


def _offer(cluster: VirtualGateways, name: str, requests: list[Request]) -> None:
    if name in cluster.gateways:
        cluster.gateways[name].offer(requests)


def _restart(cluster: VirtualGateways, name: str) -> None:
    if name in cluster.gateways:
        cluster.kill(name)
        cluster.attach(name)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([0.0, 2.0]))
def test_the_engine_never_has_more_than_the_windows_and_one_request_a_gateway(
    seed: int, num_gateways: int, ramp_s: float
) -> None:
    cluster = VirtualGateways(ReplicaConfig(max_num_seqs=8, ramp_s=ramp_s))
    Watch(cluster)
    story(Random(seed), cluster, num_gateways)
    cluster.run(until_s=5.0)
    cluster.run_out()
    assert not cluster.there
    for gateway in cluster.gateways.values():
        assert not gateway.queue
        assert (gateway.balance.outstanding.tokens, gateway.balance.outstanding.requests) == (0, 0)


SHARES = {1: (1.0,), 2: (0.8, 0.2), 4: (0.6, 0.25, 0.1, 0.05)}
"""Of the load, by gateway."""


def num_steps(config: ReplicaConfig, num_gateways: int, *, is_limited: bool) -> int:
    """To answer a load that is there from the start, many times what runs at once."""
    rng = Random(0)
    cluster = VirtualGateways(config)
    gateways = [cluster.attach(f"g{number}", is_limited=is_limited) for number in range(num_gateways)]
    load: dict[str, list[Request]] = {gateway.gateway_id: [] for gateway in gateways}
    for number in range(24 * config.max_num_seqs):
        (name,) = rng.choices(list(load), SHARES[num_gateways])
        size = (rng.randint(64, 512), rng.randint(16, 128))
        load[name].append(a_request(str(number), *size, flow_id=name))
    for gateway in gateways:
        gateway.offer(load[gateway.gateway_id])
    cluster.run_out()
    return cluster.num_steps


@pytest.mark.parametrize("num_gateways", [1, pytest.param(2, marks=pytest.mark.soak), 4])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(ReplicaConfig(32, 256, SMALL_MODEL), id="small"),
        pytest.param(ReplicaConfig(64, 512, EIGHT_BILLION), id="large", marks=pytest.mark.soak),
    ],
)
def test_at_saturation_credit_costs_at_most_three_percent_of_the_throughput(
    config: ReplicaConfig, num_gateways: int
) -> None:
    unlimited = num_steps(config, num_gateways, is_limited=False)
    limited = num_steps(config, num_gateways, is_limited=True)
    assert unlimited / limited >= 0.97
