"""Sets of answers that routes of the admin API have in common."""

from __future__ import annotations

from typing import Any

from cluster.api.admin.examples import page
from cluster.api.admin.paging import Page
from cluster.api.described import (
    BEHIND_DOOR,
    ETAG_HEADER,
    LOCATION_HEADER,
    Responses,
    gives,
    gives_nothing,
    refuses,
)

BODY = (400, 408, 413)
"""What a route that reads a body may answer because of that."""


def creates(kind: Any, example: Any, *also: int) -> Responses:
    headers = {**ETAG_HEADER, **LOCATION_HEADER}
    made = gives(kind, "It is made.", status=201, example=example, headers=headers)
    return {**made, **refuses(*BODY, 409, *also, *BEHIND_DOOR)}


def lists(kind: Any, example: Any, *also: int) -> Responses:
    listed = gives(Page[kind], "In order of their ids.", example=page(example))
    return {**listed, **refuses(400, *also, *BEHIND_DOOR)}


def shows(kind: Any, example: Any) -> Responses:
    return {
        **gives(kind, "As it is now.", example=example, headers=ETAG_HEADER),
        **gives_nothing(304, "The caller has this version.", ETAG_HEADER),
        **refuses(400, 404, *BEHIND_DOOR),
    }


def changes(kind: Any, example: Any) -> Responses:
    changed = gives(kind, "As it is now.", example=example, headers=ETAG_HEADER)
    return {**changed, **refuses(*BODY, 404, 409, 412, *BEHIND_DOOR)}


def removes() -> Responses:
    return {**gives_nothing(204, "It is gone."), **refuses(400, 404, 409, 412, *BEHIND_DOOR)}
