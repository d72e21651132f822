"""Fair shares in the production scheduler, in steps: what each tenant gets, and how long it waits."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from random import Random

import pytest

from cluster.fair_policy import FairShare
from engine.policy import FirstComeFirstServed, SchedulingPolicy
from engine.request import Flow
from loadtest.percentiles import percentile
from tests.cluster.fair_engine import FairEngine, jain

PAID = [Flow(f"paid {n}", 4) for n in range(2)]
FREE = [Flow(f"free {n}", 1) for n in range(4)]
QUIET = [Flow(f"quiet {n}") for n in range(10)]
FLOODER = Flow("flooder")
LARGE = {"num_blocks": 1000, "max_num_seqs": 64, "max_num_batched_tokens": 256}


def quiet_ttft_p99(policy: SchedulingPolicy, *, flood: float) -> float:
    """In steps; each quiet tenant asks in one step of ten, the flooder `flood` times as often.

    Who has no token at the end has waited until then.
    """
    random, engine = Random(1), FairEngine(policy, **LARGE)
    for _ in range(300):
        asking = [flow for flow in QUIET if random.random() < 0.1]
        engine.add(FLOODER, 100, 16, times=round(flood / 10))
        for flow in asking:
            engine.add(flow, 100, 16)
        engine.step()
    waits = [
        one.ttft if one.first_token else engine.now - one.arrived
        for one in engine.asked.values()
        if one.flow_id != FLOODER.flow_id
    ]
    return percentile(waits, 99) or 0.0


def test_a_flood_a_hundred_times_as_large_hardly_delays_quiet_tenants() -> None:
    solo = quiet_ttft_p99(FairShare(), flood=0)
    assert quiet_ttft_p99(FairShare(), flood=100) <= 1.2 * solo
    assert quiet_ttft_p99(FirstComeFirstServed(), flood=100) > 50 * solo


@pytest.mark.parametrize("seed", range(3))
def test_tenants_that_always_wait_share_by_weight(seed: int) -> None:
    random, engine = Random(seed), FairEngine(FairShare(), **LARGE)
    flows = [*PAID, *FREE]
    for _ in range(400):
        for flow in flows:
            if flow.flow_id not in engine.waiting:
                engine.add(flow, random.randint(1, 120), random.randint(1, 30), times=20)
        engine.step()
    assert jain(engine.served[flow.flow_id] / flow.weight for flow in flows) > 0.98


@pytest.mark.parametrize("seed", range(5))
def test_two_that_wait_are_never_further_apart_than_the_bound(seed: int) -> None:
    """Over any time in which both do. Prompts are within half of a step's budget."""
    random = Random(seed)
    engine = FairEngine(FairShare(), num_blocks=200, max_num_seqs=8, max_num_batched_tokens=64)
    weights = {flow.flow_id: flow.weight for flow in (*PAID, *FREE[:2])}
    least: dict[tuple[str, str], float] = {}
    furthest: Counter[tuple[str, str]] = Counter()
    for _ in range(400):
        for flow in (*PAID, *FREE[:2]):
            if random.random() < 0.2:
                engine.add(flow, random.randint(1, 32), random.randint(1, 20))
        engine.step()
        shares = {one: engine.served[one] / weight for one, weight in weights.items()}
        for pair in permutations(weights, 2):
            if not engine.waiting.issuperset(pair):
                least.pop(pair, None)
                continue
            lead = shares[pair[0]] - shares[pair[1]]
            least[pair] = min(lead, least.get(pair, lead))
            furthest[pair] = max(furthest[pair], lead - least[pair])
    assert len(furthest) == 12
    for pair, gap in furthest.items():
        assert gap <= sum(engine.most_to_serve[one] / weights[one] for one in pair)


def test_a_tenant_that_was_away_gets_its_share_from_then_on_and_no_more() -> None:
    engine = FairEngine(FairShare(), **LARGE)
    engine.add(FLOODER, 100, 10, times=1000)
    engine.run(200)
    before = engine.served.copy()
    engine.add(QUIET[0], 100, 10, times=1000)
    engine.run(200)
    assert engine.served[QUIET[0].flow_id] == pytest.approx(
        engine.served[FLOODER.flow_id] - before[FLOODER.flow_id], rel=0.1
    )


def test_batch_gets_a_twentieth_beside_an_interactive_flood_and_hardly_more() -> None:
    engine = FairEngine(FairShare(), **LARGE)
    engine.add(FREE[0], 100, 10, priority=1, times=200)
    engine.add(FLOODER, 100, 10, times=1000)
    engine.run(300)
    assert engine.by_class[1] / sum(engine.by_class.values()) == pytest.approx(0.05, abs=0.005)


def test_batch_gets_it_though_others_of_its_class_hold_all_seats_at_first() -> None:
    """They were let in when nobody else was there."""
    engine = FairEngine(FairShare(), num_blocks=1000, max_num_seqs=8, max_num_batched_tokens=64)
    engine.add(FREE[0], 1, 500, priority=1, times=8)
    engine.run(5)
    late = engine.add(FREE[1], 10, 10, priority=1, times=50)
    engine.add(FLOODER, 30, 2, times=2000)
    engine.run(1000)
    assert sum(one.first_token is not None for one in late) > 3


def test_who_makes_room_is_the_tenant_above_its_share_and_all_end() -> None:
    engine = FairEngine(FairShare(), num_blocks=41, max_num_seqs=16, max_num_batched_tokens=64)
    engine.add(FLOODER, 20, 100, times=30)
    engine.run(20)
    quiet = engine.add(QUIET[0], 20, 100, times=2)
    engine.run_out()
    flooded = [one for one in engine.asked.values() if one.flow_id == FLOODER.flow_id]
    assert sum(one.num_preemptions for one in quiet) == 0
    assert sum(one.num_preemptions for one in flooded) > 10
    assert max(one.num_preemptions for one in flooded) <= 4
    assert all(one.num_output_tokens == 100 for one in engine.asked.values())


def test_with_demand_of_three_pools_all_end_and_nobody_is_preempted_more_than_four_times() -> None:
    random = Random(3)
    engine = FairEngine(FairShare(), num_blocks=101, max_num_seqs=32, max_num_batched_tokens=64)
    for _ in range(60):
        flow = random.choice([*PAID, *FREE])
        engine.add(flow, random.randint(1, 120), random.randint(1, 150), priority=random.randint(0, 1))
    wanted = sum(one.to_serve for one in engine.asked.values())
    assert wanted > 3 * 100 * 16
    engine.run_out()
    assert engine.scheduler.counters().preemptions_total > 0
    assert max(one.num_preemptions for one in engine.asked.values()) <= 4
    assert all(one.to_serve == 0 for one in engine.asked.values())
