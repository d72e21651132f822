"""From checked fields to what the engine is told: how tokens are drawn, and how many at most."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.api.errors import bad_request
from cluster.api.types import SamplingFields
from engine.request import SamplingParams

_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """The effective maximum of output tokens, and whether the client asked for more."""

    max_tokens: int
    is_lowered: bool


def limit_tokens(
    asked: int | None, *, num_prompt_tokens: int, max_model_len: int, tier_maximum: int, param: str
) -> TokenLimit:
    """min(asked, what the context leaves, the tier's maximum); without `asked` the latter two.

    Raises `ApiError` 400 `context_length_exceeded`, naming `param`, if the prompt leaves no room.
    """
    room = max_model_len - num_prompt_tokens
    if room < 1:
        message = (
            f"This model's context is {max_model_len} tokens and the prompt has {num_prompt_tokens}: "
            "at least one must be left for the answer."
        )
        raise bad_request(message, param=param, code="context_length_exceeded")
    allowed = min(room, tier_maximum)
    if asked is None:
        return TokenLimit(allowed, is_lowered=False)
    return TokenLimit(min(asked, allowed), is_lowered=asked > allowed)


def sampling_params(
    fields: SamplingFields, max_tokens: int, *, vocab_size: int, drawn_seed: int
) -> SamplingParams:
    """`drawn_seed` counts if the client gave none. `top_k` beyond the vocabulary keeps all of it."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=float(fields.temperature),
        top_p=float(fields.top_p),
        top_k=min(max(fields.top_k, 0), vocab_size),
        seed=(drawn_seed if fields.seed is None else fields.seed) % _SEEDS,
        ignore_eos=fields.ignore_eos,
    )
