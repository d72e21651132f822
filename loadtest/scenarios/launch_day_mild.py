"""A milder launch day: tested at five times, hit by six times, and a replica takes 30 s to start."""

from __future__ import annotations

from loadtest.scenarios.launch import Launch

SCENARIO = Launch(tested=5, hit=6, cold_start_s=30.0, lasts_s=72.0).scenario()
