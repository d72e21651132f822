"""What a run must keep to be held: nothing lost, nothing changed, and pressure that was there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEMAND = 3.0
"""Pools that the requests which are there at once would take, each at its longest."""
MAX_PREEMPTIONS = 3
"""Of one answer. Said here again, so that the engine is not judged by its own constant."""
_LOST = ("leaked_blocks", "differing", "running", "waiting", "errors")


def missed_bounds(figures: Mapping[str, Any]) -> list[str]:
    """A line for each bound that `figures` miss; none if the run is held."""
    missed = [f"{key}: {figures[key]}, and 0 are allowed" for key in _LOST if figures[key]]
    for key, most in (("max_preemptions", MAX_PREEMPTIONS), ("apart", figures["max_apart"])):
        if figures[key] > most:
            missed.append(f"{key}: {figures[key]}, and {most} are allowed")
    for key, least in (("peak_demand", DEMAND), ("preemptions", 1)):
        if figures[key] < least:
            missed.append(f"{key}: {figures[key]}, and less than {least} is no pressure; add --requests")
    return missed
