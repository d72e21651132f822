"""How one route appears in the API's description: what it takes, gives and refuses.

Bodies are described by the pydantic types that read them, answers by the msgspec types that write them.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from pydantic import TypeAdapter

Responses = dict[int | str, dict[str, Any]]
"""FastAPI's `responses`: by status."""

EXAMPLE = "x-example"
"""Holds an example as text until the document is finished: FastAPI leaves nulls out of what it passes on."""
ERROR_REF = "#/components/schemas/Error"
BEHIND_DOOR = (401, 403, 500, 503)
"""What every route that needs a key may answer."""

_MEANINGS = {
    400: "A field, parameter or header does not fit; `param` names it.",
    401: "No key, or one that is malformed, unknown, expired or not for this address.",
    402: "The budget does not pay for it. Waiting does not help.",
    403: "The key lacks the scope, or its tenant is frozen.",
    404: "There is nothing of that name.",
    408: "The body did not arrive in time.",
    409: "It clashes with what is there.",
    412: "It has been changed since the version that `If-Match` names.",
    413: "The body is too large.",
    422: "The idempotency key was used with another body.",
    429: "A limit is reached; `Retry-After` says when to come back.",
    500: "The server failed; the request id tells the occasion apart.",
    503: "It cannot be answered at the moment.",
}
_HEADERS_OF: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}}},
    429: {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}},
    503: {
        "Retry-After": {
            "description": "Seconds; there if waiting helps.",
            "schema": {"type": "integer", "minimum": 1},
        }
    },
}
ETAG_HEADER = {
    "ETag": {
        "description": "The version, in quotes: for `If-Match` and `If-None-Match`.",
        "required": True,
        "schema": {"type": "string", "pattern": '^"[0-9]+"$'},
    }
}
LOCATION_HEADER = {
    "Location": {"description": "Its address.", "required": True, "schema": {"type": "string"}},
}


def documented(body: Any, example: Any = None) -> dict[str, Any]:
    """The route's part of the document for a JSON body that is read as `body`, nested types inlined."""
    schema = TypeAdapter(body).json_schema()
    return request_body(inlined(schema, schema.pop("$defs", {})), example)


def request_body(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": media_of(schema, example)}}}


def gives(
    kind: Any,
    description: str,
    *,
    status: int = 200,
    example: Any = None,
    headers: dict[str, Any] | None = None,
) -> Responses:
    """An answer in JSON of the msgspec type `kind`."""
    media = media_of(answer_schema(kind), example)
    response = {"description": description, "content": {"application/json": media}}
    return {status: {**response, "headers": headers} if headers else response}


def media_of(schema: Any, example: Any = None) -> dict[str, Any]:
    return {"schema": schema} if example is None else {"schema": schema, EXAMPLE: json.dumps(example)}


def gives_nothing(status: int, description: str, headers: dict[str, Any] | None = None) -> Responses:
    return {status: {"description": description, **({"headers": headers} if headers else {})}}


def refuses(*statuses: int) -> Responses:
    """Errors in OpenAI's shape."""
    return {status: _refusal(status) for status in sorted(set(statuses))}


def _refusal(status: int) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": _MEANINGS[status],
        "content": {"application/json": {"schema": {"$ref": ERROR_REF}}},
    }
    return {**response, "headers": _HEADERS_OF[status]} if status in _HEADERS_OF else response


def answer_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema of what msgspec writes for `kind`: every field is there, and no other."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    whole: dict[str, Any] = inlined(schema, {name: _written(node) for name, node in components.items()})
    return whole


def _as_list(node: dict[str, Any]) -> dict[str, Any]:
    """A tuple of one kind as a list of that length: tools of OpenAPI know little of `prefixItems`."""
    if "prefixItems" not in node:
        return node
    kinds = node["prefixItems"]
    assert all(kind == kinds[0] for kind in kinds)
    return {"type": "array", "minItems": len(kinds), "maxItems": len(kinds), "items": kinds[0]}


def _written(node: dict[str, Any]) -> dict[str, Any]:
    """A field with a default is always written; one that may be left out has none (`UNSET`)."""
    if "properties" not in node:
        return node
    always = {
        *node.get("required", ()),
        *(name for name, it in node["properties"].items() if "default" in it),
    }
    properties = {
        name: {key: value for key, value in field.items() if key != "default"}
        for name, field in node["properties"].items()
    }
    return {
        **node,
        "properties": properties,
        "required": [name for name in properties if name in always],
        "additionalProperties": False,
    }


def inlined(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [inlined(child, definitions) for child in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: inlined(child, definitions) for key, child in _as_list(node).items()}
