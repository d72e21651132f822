"""What both endpoints do once the prompt is in tokens: bound it, start it, send it whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from cluster.api.answer import Answer
from cluster.api.arrival import Arrival
from cluster.api.errors import bad_request, deadline_exceeded, no_capacity
from cluster.api.logprobs import TokenNames
from cluster.api.sampling import TokenLimit, limit_tokens, most_tokens_with_logprobs, sampling_params
from cluster.api.shapes import Label, Shape
from cluster.api.sse import SseResponse
from cluster.api.types import SamplingFields
from cluster.api.waiting import client_left, unless
from cluster.generation import GenerationRequest
from tenants.tier import TIERS

T = TypeVar("T")


async def off_loop(arrival: Arrival, work: Callable[[], T]) -> T:
    """Runs `work` (tokenising, templates) in the pool, so that the event loop serves others meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(arrival.services.tokenizer_pool, work)


def label_of(arrival: Arrival, prefix: str, fields: SamplingFields) -> Label:
    services = arrival.services
    return Label(
        answer_id=f"{prefix}-{arrival.request_id}",
        created=int(services.wall_clock()),
        model=services.model_name,
        include_usage=fields.include_usage,
        names=None if fields.num_logprobs is None else TokenNames(services.tokenizer),
    )


async def respond(
    http: Request,
    arrival: Arrival,
    fields: SamplingFields,
    prompt_token_ids: tuple[int, ...],
    *,
    param: str,
    shape: Shape,
) -> Response:
    """The answer. `param` names the field that the prompt came from. Raises `ApiError`."""
    if not prompt_token_ids:
        raise bad_request(f"'{param}' must not be empty: it has no tokens.", param=param)
    if fields.n > arrival.services.max_num_seqs:
        message = f"'n' must be at most {arrival.services.max_num_seqs}: a replica runs no more at once."
        raise bad_request(message, param="n")
    arrival.check_deadline()
    limit = _limit(arrival, fields, len(prompt_token_ids), param)
    answer = Answer(arrival, _generation_request(arrival, fields, prompt_token_ids, limit))
    if fields.stream:
        return SseResponse(arrival, answer.frames(shape), lambda: _headers(answer, limit))
    return await _whole(http, arrival, answer, limit, shape)


def _limit(arrival: Arrival, fields: SamplingFields, num_prompt_tokens: int, param: str) -> TokenLimit:
    max_model_len = arrival.services.max_model_len()
    if max_model_len < 1:
        raise no_capacity("No replica can serve at the moment; try again shortly.")
    tier = TIERS[arrival.identity.tenant.tier]
    return limit_tokens(
        fields.asked_max_tokens,
        num_prompt_tokens=num_prompt_tokens,
        max_model_len=max_model_len,
        maximum=min(tier.max_output_tokens, most_tokens_with_logprobs(fields)),
        param=param,
    )


def _generation_request(
    arrival: Arrival, fields: SamplingFields, prompt_token_ids: tuple[int, ...], limit: TokenLimit
) -> GenerationRequest:
    services = arrival.services
    return GenerationRequest(
        request_id=arrival.request_id,
        tenant=arrival.identity.tenant,
        prompt_token_ids=prompt_token_ids,
        sampling=sampling_params(
            fields,
            limit.max_tokens,
            vocab_size=services.tokenizer.vocab_size,
            drawn_seed=services.draw_seed(),
        ),
        n=fields.n,
        stop=fields.stop,
        deadline=arrival.deadline,
    )


def _headers(answer: Answer, limit: TokenLimit) -> dict[str, str]:
    headers = {}
    if limit.is_lowered:
        headers["x-headrace-max-tokens"] = str(limit.max_tokens)
    if answer.generation is not None:
        headers["x-headrace-replica"] = answer.generation.replica_id
        if answer.generation.timing is not None:
            headers["x-headrace-queue-ms"] = str(round(1000 * answer.generation.timing.queued_s))
    return headers


async def _whole(
    http: Request, arrival: Arrival, answer: Answer, limit: TokenLimit, shape: Shape
) -> Response:
    choices, usage = await unless(
        answer.whole(),
        (client_left(http.receive), ClientDisconnect()),
        (arrival.services.sleep(arrival.remaining_s), deadline_exceeded()),
    )
    headers = {**_headers(answer, limit), "x-headrace-cached-tokens": str(usage.cached_tokens)}
    return Response(shape.whole(choices, usage), media_type="application/json", headers=headers)
