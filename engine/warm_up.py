"""The two heaviest steps that a scheduler can plan: what they take, no later step exceeds."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.request import SamplingParams
from engine.step import ScheduledRequest, StepPlan

_COSTLIEST = SamplingParams(
    max_tokens=1,
    temperature=0.8,
    top_p=0.9,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    num_logprobs=20,
)
"""Every way of touching the logits at once."""


def heaviest_steps(config: EngineConfig) -> tuple[StepPlan, StepPlan]:
    """A prefill of a whole token budget at the end of the longest context, and decodes of as many
    requests as may run at once, as long as the pool lets all of them be.

    All are in the null block: they write nowhere else.
    """
    longest = config.max_model_len
    num_prefilled = min(config.max_num_batched_tokens, longest)
    together = max(1, (config.num_blocks - 1) * config.block_size // config.max_num_seqs)
    prefill = _scheduled(config, longest - num_prefilled, num_prefilled)
    decode = _scheduled(config, min(together, longest) - 1, 1)
    return StepPlan(0, (prefill,)), StepPlan(0, (decode,) * config.max_num_seqs)


def _scheduled(config: EngineConfig, num_computed: int, num_scheduled: int) -> ScheduledRequest:
    length = num_computed + num_scheduled
    blocks = (0,) * -(-length // config.block_size)
    return ScheduledRequest(
        "warm-up", (0,) * num_scheduled, num_computed, blocks, 0, _COSTLIEST, history=(0,) * length
    )
