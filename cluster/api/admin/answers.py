"""Answers of the admin API: msgspec types as JSON, one resource with its ETag."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Response

from cluster.api.admin.etag import etag, is_known
from cluster.api.admin.views import ResourceView

_encoder = msgspec.json.Encoder()


def shown(answer: Any, status: int = 200) -> Response:
    return Response(_encoder.encode(answer), status, media_type="application/json")


def shown_one(view: ResourceView, if_none_match: str | None = None) -> Response:
    """One resource; 304 for who has this version."""
    headers = {"ETag": etag(view.version)}
    if is_known(if_none_match, view.version):
        return Response(status_code=304, headers=headers)
    return Response(_encoder.encode(view), media_type="application/json", headers=headers)


def created(view: ResourceView, location: str) -> Response:
    headers = {"ETag": etag(view.version), "Location": location, "Cache-Control": "no-store"}
    return Response(_encoder.encode(view), 201, media_type="application/json", headers=headers)


def gone() -> Response:
    return Response(status_code=204)
