"""Clients try again as OpenAI's SDKs do."""

from __future__ import annotations

from random import Random

import pytest

from loadtest.fleet.call import Call
from loadtest.fleet.client import Clients
from loadtest.fleet.clock import VirtualClock
from tests.loadtest.fleet.small import prompts_of


class Refusing:
    """A gateway that says the same to everybody."""

    def __init__(self, clock: VirtualClock, retry_after_s: int | None) -> None:
        self._clock = clock
        self._retry_after_s = retry_after_s

    def ask(self, call: Call) -> None:
        call.end("503", self._clock.now, retry_after_s=self._retry_after_s)


def tries(retry_after_s: int | None) -> list[tuple[float, bool]]:
    """When each was sent, and whether it came as told."""
    clock = VirtualClock()
    seen: list[Call] = []
    gateways = [Refusing(clock, retry_after_s)]
    clients = Clients(clock, gateways, Random(0), seen.append)  # type: ignore[arg-type]
    clients.send(prompts_of().make(0))
    clock.run(until=1000.0)
    assert clients.num_open == 0
    return [(call.sent_at, call.was_told) for call in seen]


def test_a_client_waits_as_long_as_it_is_told_up_to_a_minute() -> None:
    assert tries(60) == [(0.0, False), (60.0, True), (120.0, True)]


@pytest.mark.parametrize("retry_after_s", [None, 61])
def test_otherwise_it_backs_off_twice_as_long_each_time(retry_after_s: int | None) -> None:
    first, second, third = tries(retry_after_s)
    assert [first[1], second[1], third[1]] == [False] * 3
    assert 0.375 <= second[0] - first[0] <= 0.5
    assert 0.75 <= third[0] - second[0] <= 1.0
