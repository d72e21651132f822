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
from cluster.api.draft import Draft
from cluster.api.errors import bad_request
from cluster.api.idempotency import answer_once
from cluster.api.openai_schema import openai_body
from cluster.api.request_context import RequestContext, request_context
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
async def create_completion(http: Request, context: RequestContext = Depends(request_context)) -> Response:
    """Continues a prompt, whole or as an event stream."""
    return await answer_once(http, context, partial(_draft, context))


async def _draft(context: RequestContext, body: bytes) -> Draft:
    fields = completion_request(body)
    context.check_model(fields.model)
    prompt_token_ids = await _prompt(context, fields.prompt)
    shape = TextShape(label_of(context, "cmpl", fields))
    return draft(context, fields, prompt_token_ids, param="prompt", shape=shape)


async def _prompt(context: RequestContext, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    tokenizer = context.services.tokenizer
    if isinstance(prompt, str):
        return tuple(await off_loop(context, lambda: tokenizer.encode(prompt)))
    if min(prompt) < 0 or max(prompt) >= tokenizer.vocab_size:
        message = f"'prompt' must hold token ids from 0 to {tokenizer.vocab_size - 1}."
        raise bad_request(message, param="prompt")
    return prompt
