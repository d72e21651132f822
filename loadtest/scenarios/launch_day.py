"""Launch day: tested at three times, hit by eight times, and a replica takes 90 s to start."""

from __future__ import annotations

from loadtest.scenarios.launch import Launch
from loadtest.scenarios.scenario import Bound, Scenario

LAUNCH = Launch(tested=3, hit=8, cold_start_s=90.0, lasts_s=150.0)

SCENARIO = Scenario(
    summary="Tested at 3 ×, hit by 8 ×, 90 s of cold start: no cascade.",
    bounds=(
        Bound("goodput_of_possible_min", "≥", 0.9),
        Bound("goodput_of_best_min", "≥", 0.95),
        Bound("recovery_s", "≤", LAUNCH.cold_start_s + 10),
        Bound("returned_in_time", "≥", 0.9),
    ),
    run=lambda seed, on_time: LAUNCH.measure(LAUNCH.config(seed), on_time),
    baseline=lambda seed, on_time: LAUNCH.measure(LAUNCH.naive(seed), on_time),
    axes=("seconds", "tokens of service a second"),
)
