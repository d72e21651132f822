"""The two values between scheduler and executor: what one step is to compute, and what came out."""

from __future__ import annotations

import msgspec

from engine.request import SamplingParams, TokenLogprobs


class ScheduledRequest(msgspec.Struct, frozen=True, gc=False):
    """`token_ids` are computed at positions `[num_computed_tokens, num_computed_tokens + len)`.

    `block_table` covers all positions up to there. If `output_index` is not None, the last
    position's logits are sampled and the token is output number `output_index` (0-based, the
    counter of the generator); None marks a prefill chunk that does not reach the end.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_computed_tokens: int
    block_table: tuple[int, ...]
    output_index: int | None
    sampling: SamplingParams
    sibling: int = 0
    n: int = 1
    """So many siblings, from `sibling` on, draw from these logits; above 1 for the first output only."""
    history: tuple[int, ...] = ()
    """Prompt + output so far, where penalties read it; the last `output_index` are output."""
    masked_token_ids: tuple[int, ...] = ()
    """Not to be drawn here: what would end a request below its `min_tokens`."""

    @property
    def num_scheduled_tokens(self) -> int:
        return len(self.token_ids)


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """One step's work.

    `copies` are (source block, destination block): all sources are read before any is written, and
    all are written before anything is computed.
    """

    step: int
    scheduled: tuple[ScheduledRequest, ...]
    copies: tuple[tuple[int, int], ...] = ()
    preempted: tuple[str, ...] = ()

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(request.num_scheduled_tokens for request in self.scheduled)


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    logprobs: TokenLogprobs | None = None


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """`token_ids[i]` belongs to `plan.scheduled[i]`; None where nothing was sampled.

    `siblings` holds, by the same index, the first tokens of the further siblings where there are any.
    `errors` holds the rows that failed alone, by the same index: their tokens are None, and what was
    computed for them is not to be used. `logprobs` holds the rows that asked for them.
    """

    step: int
    token_ids: tuple[int | None, ...]
    logprobs: dict[int, TokenLogprobs] = {}
    errors: dict[int, str] = {}
    """Row → error code."""
    siblings: dict[int, tuple[SampledToken, ...]] = {}
