"""A replica that comes into a fleet is warmed: requests find there what they share, and nobody is charged."""

from __future__ import annotations

import pytest

from cluster.autoscaling.cold_start import STAGES
from cluster.autoscaling.demand import Demand
from cluster.autoscaling.policy import Decision, FleetView
from engine.request import Request
from loadtest.fleet.call import Customer
from loadtest.fleet.fleet import VirtualFleet
from loadtest.fleet.link import VirtualLink
from loadtest.fleet.run import FleetRun
from loadtest.fleet.traffic import OpenLoopTraffic, Stage
from tenants.terms import Limits
from tests.loadtest.fleet.small import a_config, prompts_of

COMES_S = 5.0
SHARED_TOKENS = 640
UNLIMITED = Customer("tenant", limits=Limits(requests_per_min=100_000))


class OneMore:
    """Orders a second replica when it is time."""

    def decide(self, now: float, demand: Demand, fleet: FleetView) -> Decision:
        return Decision(2 if now >= COMES_S else 1, "")


class Sent:
    """Requests of warmings, and when gateways sent them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[float, Request]] = []
        send = VirtualLink.warm

        def warm(link: VirtualLink, request: Request) -> None:
            self.requests.append((link._clock.now, request))
            send(link, request)

        monkeypatch.setattr(VirtualLink, "warm", warm)


def a_fleet(**fields: int) -> VirtualFleet:
    """Nobody asks for two seconds after the second replica has come."""
    config = a_config(
        num_replicas=1, scaler=OneMore, cold_start_s=dict.fromkeys(STAGES, 0.0), **{"ramp_s": 5.0, **fields}
    )
    fleet = VirtualFleet(config)
    prompts = prompts_of(UNLIMITED, shared_tokens=SHARED_TOKENS, own_tokens=(32, 32))
    fleet.add(OpenLoopTraffic(prompts, [Stage(4.0, COMES_S), Stage(0.0, 2.0), Stage(12.0, 3.0)]))
    return fleet


def first_at_the_new_one(run: FleetRun) -> int:
    """Cached tokens of the first request there."""
    there = [call.record for call in run.calls if call.record.replica == "replica-1"]
    return min(there, key=lambda record: record.sent_at).cached_tokens


def test_a_replica_that_comes_is_given_what_requests_share_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    run = a_fleet().run()
    ((at, request),) = sent.requests
    since = run.served["replica-1"].since
    assert at == pytest.approx(since + 2 * run.config.link_delay_s)
    assert request.prompt_token_ids == tuple(range(SHARED_TOKENS))
    assert first_at_the_new_one(run) == SHARED_TOKENS


def test_without_it_the_first_request_computes_that_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    run = a_fleet(warm_prefixes=0).run()
    assert sent.requests == []
    assert first_at_the_new_one(run) == 0


@pytest.mark.parametrize("num_gateways", [1, 2])
async def test_it_is_in_no_call_and_in_no_ledger(monkeypatch: pytest.MonkeyPatch, num_gateways: int) -> None:
    sent = Sent(monkeypatch)
    fleet = a_fleet(num_gateways=num_gateways)
    records = [call.record for call in fleet.run().calls]
    assert len(sent.requests) == num_gateways
    (row,) = await fleet.ledger.usage("tenant", "1970-01-01", "1970-01-01")
    assert row.prompt_tokens == sum(record.prompt_tokens for record in records) == 672 * len(records)
    assert row.completion_tokens == sum(record.output_tokens for record in records) == 8 * len(records)
