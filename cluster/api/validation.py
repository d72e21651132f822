"""From the bytes of a body to a checked request, or the one error that names the field at fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from cluster.api.errors import ApiError, bad_request
from cluster.api.openai_fields import own_fields, own_message_fields
from cluster.api.strict_json import parse_object
from cluster.api.types import ChatCompletionRequest, CompletionRequest, Message
from tenants.terms import ServiceClass

Model = TypeVar("Model", bound=BaseModel)

MAX_REQUEST_TIMEOUT_S = 86_400.0
DEFAULT_REQUEST_TIMEOUT_S = 600.0

_CONTENT_TYPE = re.compile(r'application/json\s*(;\s*charset\s*=\s*"?utf-?8"?\s*)?;?\s*', re.IGNORECASE)
_DECIMAL_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,9})?")


def chat_request(body: bytes) -> ChatCompletionRequest:
    """Raises `ApiError` 400 naming the field."""
    fields = own_fields(parse_object(body), ChatCompletionRequest.model_fields)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_message_fields(index, message) for index, message in enumerate(messages)]
    return _checked(ChatCompletionRequest, fields)


def completion_request(body: bytes) -> CompletionRequest:
    """Raises `ApiError` 400 naming the field."""
    return _checked(CompletionRequest, own_fields(parse_object(body), CompletionRequest.model_fields))


def check_content_type(content_type: str | None, content_encoding: str | None) -> None:
    """Raises `ApiError` 400: nothing but JSON in UTF-8 is read, and nothing compressed."""
    if content_type is None or not _CONTENT_TYPE.fullmatch(content_type.strip()):
        message = "The header 'content-type' must be 'application/json'."
        raise bad_request(message, param="content-type", code="invalid_content_type")
    if content_encoding not in (None, "identity"):
        message = "The header 'content-encoding' must not be set: compressed bodies are not read."
        raise bad_request(message, param="content-encoding", code="invalid_content_type")


def request_timeout_s(header: str | None) -> float:
    """Seconds that the whole answer may take. Raises `ApiError` 400 unless it is a decimal > 0."""
    if header is None:
        return DEFAULT_REQUEST_TIMEOUT_S
    seconds = float(header) if _DECIMAL_SECONDS.fullmatch(header) else 0.0
    if not 0 < seconds <= MAX_REQUEST_TIMEOUT_S:
        bounds = f"> 0 and <= {MAX_REQUEST_TIMEOUT_S:.0f}"
        message = f"The header 'x-request-timeout' must be seconds {bounds}, as in 2.5."
        raise bad_request(message, param="x-request-timeout")
    return seconds


def service_class(header: str | None, own: ServiceClass) -> ServiceClass:
    """The class that is asked for, `own` being the tenant's: no one steps above it. Raises `ApiError` 400."""
    if header is None or header == own:
        return own
    if header == "batch":
        return "batch"
    known = header in get_args(ServiceClass)
    bounds = "'batch': this tenant's requests are" if known else "'interactive' or 'batch'"
    raise bad_request(f"The header 'x-headrace-class' must be {bounds}.", param="x-headrace-class")


def is_return(header: str | None) -> bool:
    """Whether the client says that it asks again, as OpenAI's SDKs do."""
    return header is not None and header.isascii() and header.isdigit() and header.strip("0") != ""


def first_problem(error_list: list[Any], skip: int = 0) -> ApiError:
    """The first of pydantic's errors as ours. `skip` leading parts of its place name no field."""
    problem = error_list[0]
    place = [str(part) for part in problem["loc"][skip:]]
    field = problem.get("ctx", {}).get("field")
    param = ".".join([*place, field] if field else place) or None
    if problem["type"] == "missing":
        return bad_request(f"'{param}' is required.", param=param, code="missing_required_parameter")
    if problem["type"] == "extra_forbidden":
        return bad_request(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    code = "invalid_type" if problem["type"].endswith("_type") else "invalid_value"
    subject = f"'{param}'" if param else "The body"
    return bad_request(f"{subject}: {problem['msg']}.", param=param, code=code)


def _message_fields(index: int, message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    return own_message_fields(message, Message.model_fields, f"messages.{index}")


def _checked(model: type[Model], fields: dict[str, Any]) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise first_problem(problems) from None
