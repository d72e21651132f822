"""The gateway's HTTP application. Every route needs a key but `/health` and `/ready`.

A path or method that is none of ours needs one too: without a key it is 401 like everything else,
with one 404 or 405. Every error has OpenAI's shape (`errors.py`).
"""

from __future__ import annotations

import math

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from cluster.api import admin, chat, completions, health, models, openapi, rollouts
from cluster.api.auth import require
from cluster.api.errors import ApiError
from cluster.api.middleware import RequestMiddleware
from cluster.api.services import Services
from cluster.api.validation import first_problem

_bearer = HTTPBearer(auto_error=False)
_any_key = require("inference", "metrics", "admin")

_MAX_PATH_CHARS = 128


def build_app(services: Services) -> FastAPI:
    """The whole API over `services`, which handlers find in `app.state.services`."""
    app = FastAPI(
        title="headrace",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_exception,
            RequestValidationError: _on_validation_error,
        },
    )
    app.state.services = services
    app.state.started_at = int(services.wall_clock())
    app.add_middleware(RequestMiddleware, services=services)
    for module in (chat, completions, models, health, openapi, admin, rollouts):
        app.include_router(module.router)
    return app


async def _on_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(error.body(), error.status, headers)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own: no such path, no such method. Only who has a key learns which."""
    assert isinstance(error, HTTPException)
    try:
        await _any_key(request, await _bearer(request))
    except ApiError as refusal:
        return await _on_api_error(request, refusal)
    headers = dict(Headers(error.headers))
    code, message = _what_is_wrong(request, error.status_code, headers.get("allow"))
    return await _on_api_error(request, ApiError(error.status_code, code, message, headers=headers))


def _what_is_wrong(request: Request, status: int, allowed: str | None) -> tuple[str, str]:
    """Code and message."""
    path = request.scope["path"][:_MAX_PATH_CHARS]
    if status == 404:
        return "not_found", f"There is no path '{path}'."
    if status == 405:
        return "method_not_allowed", f"'{path}' does not take {request.method}, but {allowed}."
    return "http_error", "The request cannot be answered."


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """A path or query parameter that does not fit; bodies are read by our own code."""
    assert isinstance(error, RequestValidationError)
    return await _on_api_error(request, first_problem(list(error.errors()), skip=1))
