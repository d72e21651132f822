"""What a route reads of a request beside its path: a JSON body, and query parameters, each given once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from cluster.api.errors import bad_request
from cluster.api.strict_json import parse_object
from cluster.api.validation import check_content_type, first_problem

Body = TypeVar("Body")

_MAX_NAME_CHARS = 64


def body_of(kind: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """A dependency that reads the body as `kind`. Raises `ApiError` 400 naming the field."""
    adapter = TypeAdapter(kind)

    async def read(request: Request) -> Body:
        check_content_type(request.headers.get("content-type"), request.headers.get("content-encoding"))
        try:
            return adapter.validate_python(parse_object(await request.body()))
        except ValidationError as error:
            raise first_problem(error.errors(include_url=False, include_input=False)) from None

    return read


async def each_once(request: Request) -> None:
    """A dependency. Raises `ApiError` 400 for a query parameter given twice: either could be meant."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in counts.items():
        if count > 1:
            param = name[:_MAX_NAME_CHARS]
            raise bad_request(f"The parameter '{param}' is given {count} times.", param=param)
