"""From checked fields to what the engine is told: how tokens are drawn, and how many at most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.api.errors import bad_request
from cluster.api.types import INT64_MAX, SamplingFields
from engine.request import SamplingParams

MAX_LOGPROBS = 2**19
"""Of one answer, all siblings together: some 100 bytes each while it is not sent."""
_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """The effective maximum of output tokens, and whether the client asked for more."""

    max_tokens: int
    is_lowered: bool


def limit_tokens(
    asked: int | None,
    *,
    num_prompt_tokens: int,
    max_model_len: int,
    maximum: int,
    param: str,
    whose: str = "This model",
) -> TokenLimit:
    """min(asked, what the context leaves, `maximum`); without `asked` the latter two.

    `whose` the context is, for people.
    Raises `ApiError` 400 `context_length_exceeded`, naming `param`, if the prompt leaves no room.
    """
    room = max_model_len - num_prompt_tokens
    if room < 1:
        message = (
            f"{whose}'s context is {max_model_len} tokens and the prompt has {num_prompt_tokens}: "
            "at least one must be left for the answer."
        )
        raise bad_request(message, param=param, code="context_length_exceeded")
    allowed = min(room, maximum)
    if asked is None:
        return TokenLimit(allowed, is_lowered=False)
    return TokenLimit(min(asked, allowed), is_lowered=asked > allowed)


def most_tokens_with_logprobs(fields: SamplingFields) -> int:
    """How long each of the `n` answers may be for all their logprobs to be at most `MAX_LOGPROBS`."""
    if fields.num_logprobs is None:
        return INT64_MAX
    return MAX_LOGPROBS // (fields.n * (1 + fields.num_logprobs))


def sampling_params(
    fields: SamplingFields, max_tokens: int, *, vocab_size: int, drawn_seed: int
) -> SamplingParams:
    """`drawn_seed` counts if the client gave none. `top_k` beyond the vocabulary keeps all of it.

    Raises `ApiError` 400 naming the field for token ids that the vocabulary doesn't have, and for
    more `min_tokens` than `max_tokens`.
    """
    _check_token_ids("logit_bias", (token_id for token_id, _ in fields.logit_bias), vocab_size)
    _check_token_ids("stop_token_ids", fields.stop_token_ids, vocab_size)
    if fields.min_tokens > max_tokens:
        message = f"'min_tokens' must be at most the effective 'max_tokens', {max_tokens} here."
        raise bad_request(message, param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=float(fields.temperature),
        top_p=float(fields.top_p),
        top_k=min(max(fields.top_k, 0), vocab_size),
        min_p=float(fields.min_p),
        repetition_penalty=float(fields.repetition_penalty),
        presence_penalty=float(fields.presence_penalty),
        frequency_penalty=float(fields.frequency_penalty),
        logit_bias=fields.logit_bias,
        seed=(drawn_seed if fields.seed is None else fields.seed) % _SEEDS,
        min_tokens=fields.min_tokens,
        stop_token_ids=fields.stop_token_ids,
        ignore_eos=fields.ignore_eos,
        num_logprobs=fields.num_logprobs,
    )


def _check_token_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    if not all(0 <= token_id < vocab_size for token_id in token_ids):
        raise bad_request(f"'{field}' must hold token ids from 0 to {vocab_size - 1}.", param=field)
