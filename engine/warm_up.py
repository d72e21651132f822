"""The heaviest steps that a scheduler plans: what they take, a later one hardly exceeds."""

from __future__ import annotations

from engine.block_pool import NULL_BLOCK
from engine.config import EngineConfig
from engine.memory_plan import GATHERED_TOKENS
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
    """A prefill of the whole token budget at the end of the longest context; and as many requests as may
    run at once, the last a prefill with the budget that the decodes of the others leave.

    The first decode is as long as the prefill: prefixes are shared. The others have their part of the
    pool each, or of what decodes gather at once where that is more.
    All are in the null block: they write nowhere else.
    """
    longest, budget = config.max_model_len, config.max_num_batched_tokens
    num_decodes = config.max_num_seqs - 1
    part = -(-max((config.num_blocks - 1) * config.block_size, GATHERED_TOKENS) // config.max_num_seqs)
    decodes = (_end_of(config, longest, 1), *(_end_of(config, part, 1),) * num_decodes)[:num_decodes]
    prefill = _end_of(config, longest, budget - num_decodes)
    return StepPlan(0, (_end_of(config, longest, budget),)), StepPlan(0, (*decodes, prefill))


def _end_of(config: EngineConfig, length: int, count: int) -> ScheduledRequest:
    """The last `count` tokens of a request of `length`, or of what there can be of both."""
    length = min(length, config.max_model_len)
    token_ids = (0,) * min(count, length)
    blocks = (NULL_BLOCK,) * -(-length // config.block_size)
    computed = length - len(token_ids)
    return ScheduledRequest("warm-up", token_ids, computed, blocks, 0, _COSTLIEST, history=(0,) * length)
