"""`GET /openapi.json`: the whole API, put together by FastAPI and finished here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from cluster.api.auth import require
from cluster.api.described import BEHIND_DOOR, EXAMPLE, answer_schema, gives, refuses

router = APIRouter(tags=["Service"])

DESCRIPTION = """\
OpenAI's chat and text completions for many tenants, and their administration.

Money is in integer micro-units, times are Unix seconds, days are in UTC. Every error has one shape,
`{"error": {"message", "type", "param", "code"}}`; `param` names the field, parameter or header at fault.
"""
_REQUEST_ID = {
    "description": "The request's own `x-request-id` if it is short and printable, else the server's.",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
}
_OURS_INSTEAD = ("HTTPValidationError", "ValidationError")
"""FastAPI's own errors: ours are 400 and have another shape."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    """The field, parameter or header at fault, dotted."""
    code: str


class Error(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail


@router.get(
    "/openapi.json",
    dependencies=[Depends(require("inference", "metrics", "admin", "admin:read"))],
    responses={**gives(dict[str, Any], "OpenAPI 3.1."), **refuses(*BEHIND_DOOR)},
)
async def describe(http: Request) -> JSONResponse:
    """This document."""
    return JSONResponse(http.app.openapi())


def name_of(route: APIRoute) -> str:
    """Its function's name, for generated clients."""
    return route.name


def description_of(app: FastAPI) -> dict[str, Any]:
    """The document of all routes of `app`."""
    document = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in _OURS_INSTEAD:
        schemas.pop(name, None)
    schemas["Error"] = answer_schema(Error)
    for operation in _operations(document):
        _finish(operation)
    return document


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in document["paths"].values():
        yield from methods.values()


def _finish(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    if _is_fastapis(responses.get("422")):
        del responses["422"]
    for response in responses.values():
        response.setdefault("headers", {})["X-Request-Id"] = _REQUEST_ID
    for part in (operation.get("requestBody", {}), *responses.values()):
        for media in part.get("content", {}).values():
            if EXAMPLE in media:
                media["example"] = json.loads(media.pop(EXAMPLE))
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])


def _is_fastapis(response: dict[str, Any] | None) -> bool:
    return response is not None and "HTTPValidationError" in str(response)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter may be left out, which Python says with None; it cannot be null."""
    others = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(others) != 1:
        return schema
    return {**others[0], **{key: value for key, value in schema.items() if key != "anyOf"}}
