"""The OpenAI bodies in the API's description: our fields, and the others of which only some values go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

from cluster.api.described import inlined, request_body
from cluster.api.openai_fields import HARMLESS, NEUTRAL, NEUTRAL_IN_MESSAGE

_ABOUT = frozenset({"title", "description", "default"})


def openai_body(model: type[BaseModel], example: Any) -> dict[str, Any]:
    """The route's part of the document for a body that `validation.py` reads as `model`."""
    schema = model.model_json_schema()
    schema = with_others(inlined(schema, schema.pop("$defs", {})), HARMLESS, NEUTRAL)
    if "messages" in schema["properties"]:
        messages = schema["properties"]["messages"]
        messages["items"] = with_others(messages["items"], (), NEUTRAL_IN_MESSAGE)
    return request_body(schema, example)


def with_others(
    schema: dict[str, Any], harmless: Collection[str], neutral: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """null is as good as leaving a field out, of those that may be left out."""
    own = {
        name: field if name in schema["required"] else _or_null(field)
        for name, field in schema["properties"].items()
    }
    ignored = {name: {"description": "Accepted and ignored."} for name in sorted(harmless)}
    neutrals = {
        name: {"enum": [*values, None], "description": "Not supported; these values ask for nothing."}
        for name, values in neutral.items()
    }
    return {**schema, "properties": {**ignored, **neutrals, **own}}


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if null in field.get("anyOf", ()):
        return field
    about = {name: value for name, value in field.items() if name in _ABOUT}
    return {**about, "anyOf": [{name: field[name] for name in field if name not in about}, null]}
