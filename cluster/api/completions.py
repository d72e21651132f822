"""`POST /v1/completions`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from cluster.api.answer_schemas import (
    PARAMETERS,
    TEXT_EXAMPLE,
    TEXT_REQUEST,
    TextCompletion,
    TextCompletionChunk,
    generates,
)
from cluster.api.arrival import Arrival, arrive
from cluster.api.draft import Draft
from cluster.api.errors import bad_request
from cluster.api.idempotency import answer_once
from cluster.api.openai_schema import openai_body
from cluster.api.serving import draft, label_of, off_loop
from cluster.api.shapes import TextShape
from cluster.api.types import CompletionRequest
from cluster.api.validation import completion_request

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/completions",
    openapi_extra=openai_body(CompletionRequest, TEXT_REQUEST) | PARAMETERS,
    responses=generates(TextCompletion, TextCompletionChunk, TEXT_EXAMPLE),
)
async def create_completion(http: Request, arrival: Arrival = Depends(arrive)) -> Response:
    """Continues a prompt, whole or as an event stream."""
    return await answer_once(http, arrival, partial(_draft, arrival))


async def _draft(arrival: Arrival, body: bytes) -> Draft:
    fields = completion_request(body)
    arrival.check_model(fields.model)
    prompt_token_ids = await _prompt(arrival, fields.prompt)
    shape = TextShape(label_of(arrival, "cmpl", fields))
    return draft(arrival, fields, prompt_token_ids, param="prompt", shape=shape)


async def _prompt(arrival: Arrival, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    tokenizer = arrival.services.tokenizer
    if isinstance(prompt, str):
        return tuple(await off_loop(arrival, lambda: tokenizer.encode(prompt)))
    if min(prompt) < 0 or max(prompt) >= tokenizer.vocab_size:
        message = f"'prompt' must hold token ids from 0 to {tokenizer.vocab_size - 1}."
        raise bad_request(message, param="prompt")
    return prompt
