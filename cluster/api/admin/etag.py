"""Entity tags (RFC 9110, 8.8.3): a resource's version in quotes, and what a caller's conditions say of it."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header
from pydantic import AfterValidator

from cluster.api.errors import ApiError
from cluster.api.field_checks import problem

_TAG = r'(?:W/)?"[!#-~]*"'
_LIST = rf"^(\*|{_TAG}( *, *{_TAG})*)$"


def _tags(text: str) -> str:
    if not re.fullmatch(_LIST.strip("^$"), text):
        raise problem('must be * or ETags in quotes, as in "3"')
    return text


_Tags = Annotated[str, AfterValidator(_tags)]
IfMatch = Annotated[
    _Tags | None,
    Header(
        alias="If-Match",
        json_schema_extra={"pattern": _LIST},
        max_length=1024,
        examples=['"3"'],
        description="Only if one of these is its ETag; `*`: if it is there. Else 412.",
    ),
]
IfNoneMatch = Annotated[
    _Tags | None,
    Header(
        alias="If-None-Match",
        json_schema_extra={"pattern": _LIST},
        max_length=1024,
        examples=['"3"'],
        description="Only if none of these is its ETag; else 304.",
    ),
]


def etag(version: int) -> str:
    return f'"{version}"'


def check_match(if_match: str | None, version: int) -> None:
    """Raises `ApiError` 412 unless `version` is what the caller wants to change. Weak tags never match."""
    if if_match in (None, "*") or etag(version) in re.findall(_TAG, if_match):
        return
    message = f"It has been changed since: its ETag is {etag(version)} now."
    raise ApiError(412, "precondition_failed", message, param="If-Match")


def is_known(if_none_match: str | None, version: int) -> bool:
    """Whether the caller has this version. Weak tags match too."""
    if if_none_match is None:
        return False
    tags = [tag.removeprefix("W/") for tag in re.findall(_TAG, if_none_match)]
    return if_none_match == "*" or etag(version) in tags
