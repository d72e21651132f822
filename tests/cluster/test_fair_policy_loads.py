"""Under fair shares, too, whatever comes: every invariant holds, and every token is the tape's."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings

from cluster.fair_policy import FairShare
from engine.config import EngineConfig
from tests.engine.loads import Event, Run, configs, heavy_load, loads


@settings(max_examples=150)
@given(configs(), loads())
def test_any_history_keeps_every_invariant_and_ends_empty(config: EngineConfig, events: list[Event]) -> None:
    run = Run(config, policy=FairShare())
    run.play(events)
    run.finish()


def test_long_overload_reaches_the_rare_states_and_keeps_every_invariant() -> None:
    reached: Counter[str] = Counter()
    for seed in range(15):
        config = EngineConfig(
            num_blocks=21,
            max_model_len=60,
            max_num_seqs=8,
            max_num_batched_tokens=12,
            block_size=2,
            watermark=0.0,
            enable_prefix_caching=seed % 3 > 0,
        )
        run = Run(config, policy=FairShare())
        run.play(heavy_load(Random(seed), 200))
        run.finish()
        reached["preemptions"] += run.num_preemptions
        reached["third preemptions"] += run.most_preemptions() >= 3
        reached["copies"] += run.num_copies
        reached["hits"] += run.scheduler.counters().prefix_hits_tokens_total
    assert reached["preemptions"] > 150, reached
    assert reached["third preemptions"] > 5, reached
    assert reached["copies"] > 50, reached
    assert reached["hits"] > 500, reached
