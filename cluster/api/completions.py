"""`POST /v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from cluster.api.arrival import Arrival, arrive
from cluster.api.errors import bad_request
from cluster.api.openapi import documented
from cluster.api.serving import label_of, off_loop, respond
from cluster.api.shapes import TextShape
from cluster.api.types import CompletionRequest
from cluster.api.validation import completion_request

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/completions", openapi_extra=documented(CompletionRequest))
async def create_completion(http: Request, arrival: Arrival = Depends(arrive)) -> Response:
    """Continues a prompt, whole or as an event stream."""
    fields = completion_request(await http.body())
    arrival.check_model(fields.model)
    prompt_token_ids = await _prompt(arrival, fields.prompt)
    shape = TextShape(label_of(arrival, "cmpl", fields))
    return await respond(http, arrival, fields, prompt_token_ids, param="prompt", shape=shape)


async def _prompt(arrival: Arrival, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    tokenizer = arrival.services.tokenizer
    if isinstance(prompt, str):
        return tuple(await off_loop(arrival, lambda: tokenizer.encode(prompt)))
    if min(prompt) < 0 or max(prompt) >= tokenizer.vocab_size:
        message = f"'prompt' must hold token ids from 0 to {tokenizer.vocab_size - 1}."
        raise bad_request(message, param="prompt")
    return prompt
