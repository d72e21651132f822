"""`GET /openapi.json`, and how bodies that we read ourselves appear in it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from cluster.api.auth import require

router = APIRouter(tags=["Service"])


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """The route's part of the document for a JSON body that is read as `model`, nested models inlined."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(child, definitions) for child in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(child, definitions) for key, child in node.items()}


@router.get("/openapi.json", dependencies=[Depends(require("inference", "metrics", "admin"))])
async def describe(http: Request) -> JSONResponse:
    """This document."""
    return JSONResponse(http.app.openapi())
