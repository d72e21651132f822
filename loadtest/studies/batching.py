"""What continuous batching gains: how many of the batch's slots do work, and how fast tokens come.

Static batching starts a batch only when the one before has ended: it waits for its slowest member,
and the slots of those that ended sooner stand empty. Continuous batching gives a slot to the next
request in the very next step. Both run through the production scheduler; static is an admission in
front of it. A slot is busy in a step if a request computes in it; counted are all steps in which
somebody waited.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import Any

from engine.config import BLOCK_SIZE, EngineConfig
from loadtest.studies.lengths import CONTEXT, draw_lengths
from loadtest.studies.virtual_engine import EIGHT_BILLION, Admission, VirtualEngine, everyone

MIN_UTILISATION = 0.9


@dataclass(frozen=True)
class BatchingStudy:
    """`num_slots` requests run at once at most; memory is never short."""

    num_slots: int = 32
    num_requests: int = 400
    max_num_batched_tokens: int = 2048
    seed: int = 0

    def run(self) -> dict[str, Any]:
        static = self._run(lambda num_live: 0 if num_live else self.num_slots)
        continuous = self._run(everyone)
        gain = round(continuous["output_tokens_per_s"] / static["output_tokens_per_s"], 2)
        return {
            "held": continuous["slot_utilisation"] >= MIN_UTILISATION and gain > 1,
            "slots": self.num_slots,
            "requests": self.num_requests,
            "throughput_gain": gain,
            "rows": [{"batching": "static", **static}, {"batching": "continuous", **continuous}],
        }

    def _run(self, admission: Admission) -> dict[str, Any]:
        engine = VirtualEngine(
            EngineConfig(
                num_blocks=self.num_slots * CONTEXT // BLOCK_SIZE + 1,
                max_model_len=CONTEXT,
                max_num_seqs=self.num_slots,
                max_num_batched_tokens=self.max_num_batched_tokens,
                enable_prefix_caching=False,
            ),
            EIGHT_BILLION,
        )
        steps = busy = outputs = 0
        time_s = 0.0
        load = draw_lengths(Random(self.seed), self.num_requests)
        for seen in takewhile(lambda seen: seen.is_saturated, engine.run(load, admission)):
            steps += 1
            busy += len(seen.plan.scheduled)
            outputs += len(seen.outputs)
            time_s = engine.now
        return {
            "slot_utilisation": round(busy / (steps * self.num_slots), 4),
            "output_tokens_per_step": round(outputs / steps, 2),
            "output_tokens_per_s": round(outputs / time_s, 1),
            "steps": steps,
        }
