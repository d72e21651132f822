"""Launch day: tested at three times, hit by eight times, and a replica takes 90 s to start."""

from __future__ import annotations

from loadtest.scenarios.launch import Launch

SCENARIO = Launch(tested=3, hit=8, cold_start_s=90.0, lasts_s=150.0).scenario()
