"""`POST /v1/chat/completions`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from cluster.api.answer_schemas import (
    CHAT_EXAMPLE,
    CHAT_REQUEST,
    PARAMETERS,
    ChatCompletion,
    ChatCompletionChunk,
    generates,
)
from cluster.api.draft import Draft
from cluster.api.errors import bad_request
from cluster.api.idempotency import answer_once
from cluster.api.openai_schema import openai_body
from cluster.api.request_context import RequestContext, request_context
from cluster.api.serving import draft, label_of, off_loop
from cluster.api.shapes import ChatShape
from cluster.api.types import ChatCompletionRequest, Message
from cluster.api.validation import chat_request
from engine.chat_template import ChatMessage, TemplateError

router = APIRouter(tags=["OpenAI"])

_MAX_REASON_CHARS = 300


@router.post(
    "/v1/chat/completions",
    openapi_extra=openai_body(ChatCompletionRequest, CHAT_REQUEST) | PARAMETERS,
    responses=generates(ChatCompletion, ChatCompletionChunk, CHAT_EXAMPLE),
)
async def create_chat_completion(
    http: Request, context: RequestContext = Depends(request_context)
) -> Response:
    """Answers a conversation, whole or as an event stream."""
    return await answer_once(http, context, partial(_draft, context))


async def _draft(context: RequestContext, body: bytes) -> Draft:
    fields = chat_request(body)
    context.check_model(fields.model)
    prompt_token_ids = await _prompt(context, fields.messages)
    shape = ChatShape(label_of(context, "chatcmpl", fields))
    return draft(context, fields, prompt_token_ids, param="messages", shape=shape)


async def _prompt(context: RequestContext, messages: list[Message]) -> tuple[int, ...]:
    template = context.services.chat_template
    if template is None:
        raise bad_request("This model has no chat template: use /v1/completions.", code="no_chat_template")
    turns = [_turn(message) for message in messages]
    try:
        return await off_loop(context, lambda: template.encode(turns))
    except TemplateError as error:
        reason = str(error)[:_MAX_REASON_CHARS]
        raise bad_request(f"'messages' does not fit the model: {reason}", param="messages") from None


def _turn(message: Message) -> ChatMessage:
    """`developer` is OpenAI's newer word for `system`; models were trained on the older one."""
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(role, message.content, message.name)
