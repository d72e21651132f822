"""Under fair shares, too, whatever comes: every invariant holds, and every token is the tape's."""

from __future__ import annotations

from hypothesis import given, settings

from cluster.fair_policy import FairShare
from engine.config import EngineConfig
from tests.engine.loads import Event, Run, configs, loads, long_overloads


@settings(max_examples=150)
@given(configs(), loads())
def test_any_history_keeps_every_invariant_and_ends_empty(config: EngineConfig, events: list[Event]) -> None:
    run = Run(config, policy=FairShare())
    run.play(events)
    run.finish()


def test_long_overload_reaches_the_rare_states_and_keeps_every_invariant() -> None:
    reached = long_overloads(15, FairShare)
    assert reached["preemptions"] > 150, reached
    assert reached["third preemptions"] > 5, reached
    assert reached["copies"] > 50, reached
    assert reached["hits"] > 500, reached
