"""Two gateways beside each other when more comes than can be served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from loadtest.fleet.call import Call, Customer
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.gateway import VirtualGateway
from loadtest.fleet.prompts import Prompts
from loadtest.fleet.traffic import ClosedLoopTraffic, OpenLoopTraffic, Stage
from loadtest.studies.virtual_engine import StepTime
from tests.loadtest.fleet.small import ENGINE, STEP_S, a_config, prompts_of

CAPACITY = 2 * ENGINE.max_num_seqs / (8 * STEP_S)
"""Requests a second, of eight tokens, that take all seats of both replicas."""
DEADLINE_S = 10.0


def test_at_four_times_the_load_each_foresees_its_waits_from_the_onset_on() -> None:
    """Each reckons with what the other one takes: hardly anybody waits to the end and then in vain."""
    fleet = VirtualFleet(a_config(num_gateways=2))
    for tenant_id in ("one", "other"):
        stages = [Stage(0.25 * CAPACITY, 5.0), Stage(2 * CAPACITY, 20.0)]
        fleet.add(OpenLoopTraffic(prompts_of(Customer(tenant_id)), stages))
    records = [call.record for call in fleet.run(until=37.0).calls]
    refused = Counter(record.reason for record in records if record.is_rejected)
    assert refused.total() > 1000
    assert refused["deadline_exceeded"] <= 0.012 * refused.total()
    in_time = [one for one in records if one.ttft_s is not None and one.ttft_s <= DEADLINE_S]
    assert sum(5.0 <= one.finished_at < 25.0 for one in in_time) >= 0.95 * CAPACITY * 20


def ask(gateway: VirtualGateway, fleet: VirtualFleet, tenant_id: str, number: int) -> Call:
    call = Call(prompts_of(Customer(tenant_id)).make(number), 0, False, fleet.clock.now, lambda call: None)
    gateway.ask(call)
    return call


def test_a_burst_at_a_gateway_that_had_little_to_do_is_let_in_while_the_other_one_is_flooded() -> None:
    """It has asked for hardly a window until then, and so it has hardly one."""
    fleet = VirtualFleet(a_config(num_gateways=2))
    flooded, quiet = fleet.gateways
    numbers = iter(range(10_000))
    for tick in range(80):
        fleet.clock.run(until=0.1 * tick)
        if tick < 20:
            ask(quiet, fleet, "quiet", next(numbers))
        for _ in range(round(0.4 * CAPACITY)):
            ask(flooded, fleet, "flood", next(numbers))
    burst = [ask(quiet, fleet, "quiet", next(numbers)) for _ in range(50)]
    fleet.clock.run(until=20.0)
    assert [call.status for call in burst] == ["ok"] * 50


def quiet_ttft_s(num_noisy: int) -> list[float]:
    """Ascending, of ten tenants at two gateways and three replicas with long steps, once all is under way."""
    engine = replace(ENGINE, num_blocks=4001, max_num_seqs=32, max_num_batched_tokens=512)
    step_time = StepTime(base_s=0.2, token_s=0.0)
    config = replace(a_config(num_gateways=2, num_replicas=3, step_time=step_time), engine=engine)
    fleet = VirtualFleet(replace(config, speed_spread=0.01))
    tenant_ids = [f"quiet-{number}" for number in range(10)]
    for tenant_id in tenant_ids:
        fleet.add(OpenLoopTraffic(short_prompts(tenant_id), [Stage(0.5, 40.0)]))
    fleet.add(ClosedLoopTraffic(short_prompts("noisy").make, num_noisy))
    records = [call.record for call in fleet.run(until=40.0).of(*tenant_ids)]
    return sorted(one.ttft_s for one in records if one.ttft_s is not None and one.sent_at > 5.0)


def short_prompts(tenant_id: str) -> Prompts:
    return prompts_of(Customer(tenant_id), own_tokens=(120, 120), output_tokens=(4, 4))


def test_quiet_tenants_do_not_wait_for_credit_where_another_one_floods_both_gateways() -> None:
    """Its lines at the two are never equal for long, so windows move all the time."""
    solo, beside = quiet_ttft_s(num_noisy=0), quiet_ttft_s(num_noisy=60)
    assert len(solo) > 150
    assert abs(len(solo) - len(beside)) <= 2
    assert beside[int(0.97 * len(beside))] <= 1.1 * solo[int(0.97 * len(solo))]
