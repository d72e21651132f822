"""Launch day: tested at three times, hit by eight times, and a replica takes 90 s to start."""

from __future__ import annotations

from loadtest.scenarios.launch import Launch
from loadtest.scenarios.scenario import Bound

SCENARIO = Launch(tested=3, hit=8, cold_start_s=90.0, lasts_s=132.0).scenario(
    Bound("returned_in_time", "≥", 0.9)
)
