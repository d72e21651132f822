"""A request as it crosses the link, and what comes back for it: frozen msgspec values, no text."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.block_chain import Branch
from engine.prefix_stats import PrefixStats

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How tokens are drawn. Bounds are checked where the outside comes in (`cluster/api`)."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    """Drops what is less probable than `min_p` times the most probable token."""
    repetition_penalty: float = 1.0
    """Divides (multiplies, if negative) the logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    """Taken once off the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token for each time it is in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit), each id once."""
    seed: int = 0
    """Key of the counter-based generator, mod 2^64; the gateway draws one when the client gives none."""
    min_tokens: int = 0
    """So many outputs come before any end token or stop token id may."""
    stop_token_ids: tuple[int, ...] = ()
    """End the answer like an end token, whatever `ignore_eos` says."""
    ignore_eos: bool = False
    num_logprobs: int | None = None
    """Also told: of each output token its logprob and the `num_logprobs` likeliest tokens'; None: nothing."""

    @property
    def has_penalties(self) -> bool:
        """Whether the draw depends on the tokens before it."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of the raw model distribution: before bias, penalties and temperature. Natural logarithms."""

    logprob: float
    """Of the token that was taken."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob), the likeliest first; of equal ones the lower id first."""


class Flow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Whose a request is: requests of one flow share what is its by weight."""

    flow_id: str = ""
    weight: int = 1


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request for tokens.

    `block_hashes[i]` is the chained hash of the i-th *full* block of the prompt, from `hash_root`
    (`engine/block_hash.py`). With a `branch` the first of them are of a public prefix, which other tenants'
    requests share, and `hash_root` is the public root. `output_token_ids` were generated before
    (resumption): the engine prefills them, and neither emits nor counts them again, but they count
    towards `max_tokens`.
    `priority`: lower is served first; the policy object decides what it and the `flow` mean.

    `n` answers are made to the one prompt: siblings `sibling`, `sibling` + 1, …, each with its own
    outputs and finish. The prompt is computed once. With `output_token_ids`, `n` is 1.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    hash_root: bytes
    block_hashes: tuple[bytes, ...] = ()
    branch: Branch | None = None
    output_token_ids: tuple[int, ...] = ()
    attempt: int = 0
    sibling: int = 0
    n: int = 1
    priority: int = 0
    flow: Flow = Flow()
    num_uncached_tokens: int = 0
    """To prefill, as the sender thinks and counts against its credit."""
    is_suspect: bool = False
    """It lost a replica, and may be why; the scheduler does not ask (`cluster/probation.py`)."""


class Timing(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where a finished request's time went, in seconds of the engine's clock."""

    queued_s: float
    """Arrival at the engine to first scheduled."""
    prefill_s: float
    """First scheduled to first token."""
    decode_s: float
    """First token to finish."""
    preempted_s: float
    """Part of the prefill and decode time that it interrupted."""
    num_preemptions: int
    num_recomputed_tokens: int = 0

    @property
    def seat_s(self) -> float:
        """In the batch; 0 for what never ran."""
        return self.prefill_s + self.decode_s - self.preempted_s


class RequestOutput(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one step made for one request; it is the row of the link's message as it stands."""

    request_id: str
    attempt: int
    sibling: int
    first_output_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`, where the request asked for them."""
    finish_reason: FinishReason | None = None
    error_code: str | None = None
    num_cached_tokens: int | None = None
    """Prompt tokens served from the cache; told once, with the first token or the finish."""
    timing: Timing | None = None
    """With the finish only."""
    lookup: PrefixStats | None = None
    """With `num_cached_tokens`: why not more was cached; None if no lookup was counted, as on resumption."""

    @property
    def is_failure(self) -> bool:
        return self.finish_reason in ("error", "abort")
