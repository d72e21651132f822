"""The gateway's HTTP application. Every route needs a key but `/health` and `/ready`.

A path or method that is none of ours needs one too: without a key it is 401 like everything else,
with one 404 or 405. Every error has OpenAI's shape (`errors.py`).
"""

from __future__ import annotations

import math
from functools import cache, partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from cluster.api import admin, chat, completions, health, models, openapi, rollouts, usage
from cluster.api.auth import require
from cluster.api.errors import ApiError
from cluster.api.middleware import RequestMiddleware
from cluster.api.services import Services
from cluster.api.validation import first_problem

_bearer = HTTPBearer(auto_error=False)
_any_key = require("inference", "metrics", "admin", "admin:read")

_MAX_PATH_CHARS = 128


def build_app(services: Services) -> FastAPI:
    """The whole API over `services`, which handlers find in `app.state.services`."""
    app = FastAPI(
        title="headrace",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=openapi.name_of,
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_exception,
            RequestValidationError: _on_validation_error,
        },
    )
    app.openapi = cache(partial(openapi.description_of, app))  # type: ignore[method-assign]
    app.state.services = services
    app.state.started_at = int(services.wall_clock())
    app.add_middleware(RequestMiddleware, services=services)
    for module in (chat, completions, models, usage, health, openapi, admin, rollouts):
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
    if error.status_code == 405:
        headers["allow"] = _allowed(request)
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


def _allowed(request: Request) -> str:
    """All methods that the path takes; Starlette names those of one route, and we have one a method."""
    routes = iter_route_contexts(request.app.routes)
    path = request.scope["path"]
    return ", ".join(
        sorted({method for it in routes if it.path_regex.match(path) for method in it.methods or ()})
    )


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """A path or query parameter that does not fit; bodies are read by our own code."""
    assert isinstance(error, RequestValidationError)
    return await _on_api_error(request, first_problem(list(error.errors()), skip=1))
