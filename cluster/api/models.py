"""`GET /v1/models`: the one model that is served, under each of its names."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse

from cluster.api.answer_schemas import MODEL_EXAMPLE, ModelList, ModelView
from cluster.api.auth import require
from cluster.api.described import BEHIND_DOOR, gives, refuses
from cluster.api.request_context import model_not_found
from cluster.api.services import Services

router = APIRouter(
    prefix="/v1/models", tags=["OpenAI"], dependencies=[Depends(require("inference", "admin"))]
)


@router.get("", responses={**gives(ModelList, "All names."), **refuses(*BEHIND_DOOR)})
async def list_models(http: Request) -> JSONResponse:
    """All names that the field `model` may hold."""
    services: Services = http.app.state.services
    names = (services.model_name, *services.aliases)
    return JSONResponse({"object": "list", "data": [_view(http, name) for name in names]})


@router.get(
    "/{model:path}",
    responses={
        **gives(ModelView, "The model of that name.", example=MODEL_EXAMPLE),
        **refuses(404, *BEHIND_DOOR),
    },
)
async def get_model(http: Request, model: Annotated[str, Path(examples=["tiny"])]) -> JSONResponse:
    """One name. 404 if it is not served."""
    services: Services = http.app.state.services
    if model not in (services.model_name, *services.aliases):
        raise model_not_found(model)
    return JSONResponse(_view(http, model))


def _view(http: Request, name: str) -> dict[str, Any]:
    services: Services = http.app.state.services
    return {
        "id": name,
        "object": "model",
        "created": http.app.state.started_at,
        "owned_by": "headrace",
        "max_model_len": services.max_model_len(),
    }
