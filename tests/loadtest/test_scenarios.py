"""Every scenario keeps its bounds, and the same load without what is shown does not."""

from __future__ import annotations

import pytest

from loadtest.scenarios.catalogue import find
from loadtest.scenarios.launch import QUIET_S
from loadtest.scenarios.scenario import ScenarioResult


def run(name: str) -> ScenarioResult:
    """Checked for its bounds."""
    scenario = find(name)
    outcome = scenario.run(0, lambda now: None)
    assert scenario.missed(outcome) == []
    return outcome


def baseline(name: str) -> ScenarioResult:
    return find(name).baseline(0, lambda now: None)


def test_a_tenant_at_a_hundred_times_the_load_hardly_delays_quiet_ones() -> None:
    assert run("noisy-neighbour").figures["quiet_rejected"] == 0


@pytest.mark.soak
def test_first_come_first_served_it_delays_them_much() -> None:
    assert baseline("noisy-neighbour").figures["quiet_p99_of_solo"] > 5


def test_a_burst_of_free_tenants_takes_nothing_from_paying_ones_and_is_shared() -> None:
    outcome = run("free-burst")
    assert outcome.figures["paid_rejected"] == 0
    assert outcome.rejected, "or it was no burst"


@pytest.mark.soak
def test_first_come_first_served_free_tenants_take_more_than_half_of_what_paying_ones_ask() -> None:
    assert baseline("free-burst").figures["paid_goodput_share"] < 0.5


def test_on_launch_day_replicas_do_what_they_can_until_there_are_enough() -> None:
    run("launch-day")


@pytest.mark.soak
def test_on_launch_day_naive_replicas_do_nothing_for_long() -> None:
    outcome, naive = run("launch-day"), baseline("launch-day")
    assert outcome.figures["answered_share"] > 3 * naive.figures["answered_share"]
    during = [
        good for at, good in zip(*naive.curves["goodput"], strict=True) if QUIET_S + 30 <= at < QUIET_S + 110
    ]
    assert max(during) == 0, "all that is computed is for clients who have left"


def test_a_milder_launch_day_passes_nearly_unnoticed() -> None:
    assert run("launch-day-mild").figures["answered_share"] > 0.99


@pytest.mark.soak
def test_on_a_milder_launch_day_first_tokens_of_naive_replicas_stay_late() -> None:
    assert baseline("launch-day-mild").figures["recovery_s"] is None, "not while the load lasts"


@pytest.mark.soak
def test_on_a_ramp_replicas_are_there_when_they_are_needed_and_leave_without_a_loss() -> None:
    outcome = run("ramp")
    assert outcome.rejected == {}
    assert outcome.figures["replicas_most"] > outcome.figures["replicas_last"], "or none had to leave"


@pytest.mark.soak
def test_on_a_ramp_who_ignores_the_cold_start_is_late() -> None:
    assert baseline("ramp").figures["goodput_of_offered_min"] < 0.9


def test_short_questions_beside_long_prompts_take_three_steps_at_most_and_the_long_ones_all_the_rest() -> (
    None
):
    assert run("long-against-short").figures["long_of_capacity"] > 0.95


def test_a_gateway_that_cannot_reach_redis_serves_on_within_its_share() -> None:
    outcome, whole = run("two-gateways"), baseline("two-gateways")
    assert set(outcome.rejected) == {"429 requests"}
    assert outcome.figures["admitted_of_limit"] > whole.figures["admitted_of_limit"], "or it was never cut"


def test_a_new_replica_finds_in_its_cache_what_most_prompts_begin_with() -> None:
    assert baseline("new-replica").figures["new_hit_rate"] < 0.3 < run("new-replica").figures["new_hit_rate"]
