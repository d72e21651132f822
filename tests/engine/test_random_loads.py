"""Whatever comes, in whatever order: every invariant holds, and every token is the tape's."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.policy import FirstComeFirstServed
from tests.engine.loads import Event, Run, configs, loads, long_overloads


@settings(max_examples=300)
@given(configs(), loads())
def test_any_history_keeps_every_invariant_and_ends_empty(config: EngineConfig, events: list[Event]) -> None:
    run = Run(config)
    run.play(events)
    run.finish()


@settings(max_examples=150)
@given(configs(), loads(is_calm=True), st.integers(1, 16), st.booleans())
def test_a_text_depends_on_neither_batch_nor_chunk_nor_cache_nor_preemption(
    config: EngineConfig, events: list[Event], max_num_seqs: int, is_caching: bool
) -> None:
    """Both runs equal the tapes, hence each other; without aborts, nothing is cut short."""
    other = replace(
        config,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + 7,
        enable_prefix_caching=is_caching,
    )
    for each in (config, other):
        run = Run(each)
        run.play(events)
        run.finish()
        assert all(outputs[-1].finish_reason in ("stop", "length") for outputs in run.outputs.values())


def test_long_overload_reaches_the_rare_states_and_keeps_every_invariant() -> None:
    reached = long_overloads(30, FirstComeFirstServed)
    assert reached["preemptions"] > 300, reached
    assert reached["third preemptions"] > 15, reached
    assert reached["copies"] > 100, reached
    assert reached["hits"] > 1000, reached
