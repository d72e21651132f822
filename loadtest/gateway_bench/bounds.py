"""What the gateway must reach on two cores, with its client on the same machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AT_LEAST = {
    "tokens_per_s": 10_000,
    "event_per_token_tokens_per_s": 6_000,
    "requests_per_s": 300,
}


def missed_bounds(figures: Mapping[str, Any]) -> list[str]:
    """One line for each figure below its bound."""
    return [
        f"{name} is {figures[name]:.0f}, below {bound}"
        for name, bound in AT_LEAST.items()
        if figures[name] < bound
    ]
