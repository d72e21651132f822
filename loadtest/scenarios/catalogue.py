"""The scenarios by name: each is a module of this folder, imported when it runs."""

from __future__ import annotations

from importlib import import_module

from loadtest.scenarios.scenario import Scenario

NAMES = (
    "noisy-neighbour",
    "free-burst",
    "launch-day",
    "launch-day-mild",
    "ramp",
    "long-against-short",
    "two-gateways",
    "new-replica",
)


def find(name: str) -> Scenario:
    """One of `NAMES`."""
    found = import_module(f"loadtest.scenarios.{name.replace('-', '_')}").SCENARIO
    assert isinstance(found, Scenario)
    return found
