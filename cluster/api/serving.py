"""What both endpoints do once the prompt is in tokens: bound it, and draft the answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from cluster.api.answer import Answer
from cluster.api.draft import Draft
from cluster.api.errors import bad_request, no_capacity
from cluster.api.limit_headers import limit_headers
from cluster.api.logprobs import TokenNames
from cluster.api.request_context import RequestContext
from cluster.api.sampling import TokenLimit, limit_tokens, most_tokens_with_logprobs, sampling_params
from cluster.api.shapes import Label, Shape
from cluster.api.types import SamplingFields
from cluster.generation import GenerationRequest

T = TypeVar("T")


async def off_loop(context: RequestContext, work: Callable[[], T]) -> T:
    """Runs `work` (tokenising, templates) in the pool, so that the event loop serves others meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(context.services.tokenizer_pool, work)


def label_of(context: RequestContext, prefix: str, fields: SamplingFields) -> Label:
    services = context.services
    return Label(
        answer_id=f"{prefix}-{context.request_id}",
        created=int(services.wall_clock()),
        model=services.model_name,
        include_usage=fields.include_usage,
        names=None if fields.num_logprobs is None else TokenNames(services.tokenizer),
    )


def draft(
    context: RequestContext,
    fields: SamplingFields,
    prompt_token_ids: tuple[int, ...],
    *,
    param: str,
    shape: Shape,
) -> Draft:
    """The answer to come. `param` names the field that the prompt came from. Raises `ApiError`."""
    if not prompt_token_ids:
        raise bad_request(f"'{param}' must not be empty: it has no tokens.", param=param)
    if fields.n > context.services.max_num_seqs:
        message = f"'n' must be at most {context.services.max_num_seqs}: a replica runs no more at once."
        raise bad_request(message, param="n")
    context.check_deadline()
    limit = _limit(context, fields, len(prompt_token_ids), param)
    answer = Answer(context, _generation_request(context, fields, prompt_token_ids, limit))
    if fields.stream:
        return Draft(answer.frames(shape), lambda: _headers(answer, limit), is_stream=True)
    return Draft(answer.whole(shape), lambda: _headers_at_end(answer, limit), is_stream=False)


def _limit(context: RequestContext, fields: SamplingFields, num_prompt_tokens: int, param: str) -> TokenLimit:
    max_model_len = context.services.max_model_len()
    if max_model_len < 1:
        raise no_capacity("No replica can serve at the moment; try again shortly.")
    terms = context.account.terms
    max_context = min(max_model_len, terms.max_context_tokens or max_model_len)
    return limit_tokens(
        fields.asked_max_tokens,
        num_prompt_tokens=num_prompt_tokens,
        max_model_len=max_context,
        maximum=min(terms.max_output_tokens, most_tokens_with_logprobs(fields)),
        param=param,
        whose="This model" if max_context == max_model_len else "This tenant",
    )


def _generation_request(
    context: RequestContext, fields: SamplingFields, prompt_token_ids: tuple[int, ...], limit: TokenLimit
) -> GenerationRequest:
    services = context.services
    return GenerationRequest(
        request_id=context.request_id,
        account=context.account,
        prompt_token_ids=prompt_token_ids,
        sampling=sampling_params(
            fields,
            limit.max_tokens,
            vocab_size=services.tokenizer.vocab_size,
            drawn_seed=services.draw_seed(),
        ),
        n=fields.n,
        stop=fields.stop,
        arrived=context.arrived,
        deadline=context.deadline,
        service_class=context.service_class,
        is_return=context.is_return,
    )


def _headers(answer: Answer, limit: TokenLimit) -> dict[str, str]:
    generation = answer.generation
    max_tokens = limit.max_tokens if generation is None else generation.max_tokens
    headers = {}
    if limit.is_lowered or max_tokens < limit.max_tokens:
        headers["x-headrace-max-tokens"] = str(max_tokens)
    if generation is not None:
        headers |= limit_headers(generation.standing)
        headers["x-headrace-replica"] = generation.replica_id
        if generation.timing is not None:
            queued_s = generation.waited_s + generation.timing.queued_s
            headers["x-headrace-queue-ms"] = str(round(1000 * queued_s))
    return headers


def _headers_at_end(answer: Answer, limit: TokenLimit) -> dict[str, str]:
    assert answer.generation is not None
    cached_tokens = answer.generation.usage.cached_tokens
    return {**_headers(answer, limit), "x-headrace-cached-tokens": str(cached_tokens)}
