"""`/admin/v1/keys`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Path, Query, Request, Response
from pydantic import Field

from cluster.api.admin import documents, examples
from cluster.api.admin.answers import created, gone, shown, shown_one
from cluster.api.admin.bodies import KEY_ID_PATTERN, Id, KeyChange, KeyId, NewKey, Rotation
from cluster.api.admin.changes import Wish, change, found, remove
from cluster.api.admin.door import Caller, actor_of, admin_router, locked_out, services_of
from cluster.api.admin.etag import IfMatch, IfNoneMatch
from cluster.api.admin.paging import PageQuery, page_of
from cluster.api.admin.store_errors import store_errors
from cluster.api.admin.terms_body import as_values
from cluster.api.admin.views import (
    KeyView,
    NewKeyView,
    RotatedKeyView,
    key_view,
    new_key_view,
    rotated_key_view,
)
from cluster.api.auth import client_address
from cluster.api.described import documented
from cluster.api.errors import ApiError
from cluster.api.reading import body_of
from cluster.api.services import Services
from tenants.addresses import is_in_any
from tenants.api_key import ApiKey, hash_key, new_key, new_key_id
from tenants.store import NotFound
from tenants.terms import Limits

router = admin_router("/keys")

KeyIdInPath = Annotated[
    KeyId, Path(examples=["key_0123456789abcdef"], json_schema_extra={"pattern": KEY_ID_PATTERN})
]


class KeysQuery(PageQuery):
    tenant_id: Id | None = Field(None, description="of this tenant only")


@router.post(
    "",
    status_code=201,
    openapi_extra=documented(NewKey, examples.NEW_KEY),
    responses=documents.creates(NewKeyView, examples.NEW_KEY_ANSWER, 404),
)
async def create_key(
    caller: Caller,
    body: Annotated[NewKey, Depends(body_of(NewKey))],
    services: Services = Depends(services_of),
) -> Response:
    """Makes a key. The field `key` of this answer is the only place where it is ever shown."""
    now = services.wall_clock()
    key, record = _fresh(
        services,
        tenant_id=body.tenant_id,
        name=body.name or "",
        scopes=tuple(body.scopes),
        limits=None if body.limits is None else as_values(body.limits, Limits),
        addresses=tuple(body.addresses),
        expires_at=None if body.expires_in_s is None else now + body.expires_in_s,
    )
    with store_errors():
        await services.store.create_key(record, actor_of(caller))
    return created(new_key_view(record, key), f"/admin/v1/keys/{record.key_id}")


@router.get("", responses=documents.lists(KeyView, examples.KEY, 404))
async def list_keys(
    query: Annotated[KeysQuery, Query()], services: Services = Depends(services_of)
) -> Response:
    """Keys by id, without the keys themselves."""

    async def read(after: str, limit: int) -> list[ApiKey]:
        return await services.store.list_keys(query.tenant_id, after, limit)

    with store_errors():
        return shown(await page_of(read, query, key_view, lambda key: key.key_id))


@router.get("/{key_id}", responses=documents.shows(KeyView, examples.KEY))
async def get_key(
    key_id: KeyIdInPath, if_none_match: IfNoneMatch = None, services: Services = Depends(services_of)
) -> Response:
    """One key, without the key itself."""
    with store_errors():
        return shown_one(key_view(await found("key", key_id, services.store.get_key)), if_none_match)


@router.patch(
    "/{key_id}",
    openapi_extra=documented(KeyChange, examples.KEY_CHANGE),
    responses=documents.changes(KeyView, examples.KEY),
)
async def change_key(
    http: Request,
    caller: Caller,
    key_id: KeyIdInPath,
    body: Annotated[KeyChange, Depends(body_of(KeyChange))],
    if_match: IfMatch = None,
    services: Services = Depends(services_of),
) -> Response:
    """Replaces the fields that are given, each as a whole.

    409 for what would refuse the caller, if it is the caller's own key: to lose scope admin, any expiry, or
    addresses that do not hold the caller's. A new expiry undoes a rotation: the key may be rotated again.
    """
    if key_id == caller.key.key_id:
        _check_own(body, client_address(http))
    fields = _fields_of(body, services.wall_clock())
    store = services.store

    async def edited(key: ApiKey) -> ApiKey:
        return msgspec.structs.replace(key, **fields)

    with store_errors():
        key = await change(
            Wish("key", key_id, if_match, actor_of(caller)), store.get_key, store.put_key, edited
        )
    services.authenticator.forget_key(key_id)
    return shown_one(key_view(key))


@router.post(
    "/{key_id}/rotate",
    status_code=201,
    openapi_extra=documented(Rotation, examples.ROTATION),
    responses=documents.creates(RotatedKeyView, examples.ROTATION_ANSWER, 404),
)
async def rotate_key(
    caller: Caller,
    key_id: KeyIdInPath,
    body: Annotated[Rotation, Depends(body_of(Rotation))],
    services: Services = Depends(services_of),
) -> Response:
    """Makes a key like this one, and lets this one expire after the overlap, never later than it would.

    The new key lives as long as this one was meant to. 409 if this one has expired or was rotated before:
    then `rotated_to` is the key to rotate. The caller's own key may be rotated: that is how it is renewed.
    """
    store, by, now = services.store, actor_of(caller), services.wall_clock()
    with store_errors():
        key, record = _like(await found("key", key_id, store.get_key), services)

        async def leaving(old: ApiKey) -> ApiKey:
            _check_not_rotated(old)
            until = now + body.overlap_s
            ends = min(until, old.expires_at or until)
            return msgspec.structs.replace(old, expires_at=ends, rotated_to=record.key_id)

        await store.create_key(record, by)  # first: better two keys than none
        try:
            old = await change(Wish("key", key_id, None, by), store.get_key, store.put_key, leaving)
        except (ApiError, NotFound):
            await store.delete_key(record.key_id, None, by)  # nobody holds it
            raise
    services.authenticator.forget_key(key_id)
    return created(rotated_key_view(record, key, old), f"/admin/v1/keys/{record.key_id}")


@router.delete("/{key_id}", status_code=204, responses=documents.removes())
async def delete_key(
    caller: Caller,
    key_id: KeyIdInPath,
    if_match: IfMatch = None,
    services: Services = Depends(services_of),
) -> Response:
    """Ends a key: at once in this gateway, within 1 s in the others. 409 for the caller's own."""
    if key_id == caller.key.key_id:
        raise locked_out("A key can't delete itself: use another one.")
    store = services.store
    with store_errors():
        await remove(Wish("key", key_id, if_match, actor_of(caller)), store.get_key, store.delete_key)
    services.authenticator.forget_key(key_id)
    return gone()


def _check_own(body: KeyChange, address: str | None) -> None:
    """Raises `ApiError` 409 if a key that is changed like this would refuse its caller at `address`."""
    if "admin" not in body.get("scopes", ["admin"]):
        raise locked_out("A key can't take scope admin from itself: use another one.")
    if body.get("expires_in_s") is not None:
        raise locked_out("A key can't set an end to itself: use another one, or rotate it.")
    addresses = body.get("addresses")
    if addresses and not is_in_any(address, addresses):
        raise locked_out(f"A key can't shut out where it is used from, {address}: use another one.")


def _check_not_rotated(key: ApiKey) -> None:
    """Raises `ApiError` 409: the life that a key has left in its overlap is none to hand on."""
    if key.rotated_to is not None:
        message = f"Key {key.key_id} was rotated before: rotate {key.rotated_to}, or make a new key."
        raise ApiError(409, "conflict", message)


def _fresh(services: Services, **fields: Any) -> tuple[str, ApiKey]:
    """A new key as its holder will have it, and its record."""
    key = new_key()
    record = ApiKey(
        key_id=new_key_id(),
        key_hash=hash_key(services.secret, key),
        hint=key[-4:],
        created_at=services.wall_clock(),
        **fields,
    )
    return key, record


def _like(old: ApiKey, services: Services) -> tuple[str, ApiKey]:
    """Raises `ApiError` 409 if it has expired or was rotated: what is over is not renewed by a rotation."""
    now = services.wall_clock()
    _check_not_rotated(old)
    if old.expires_at is not None and old.expires_at <= now:
        raise ApiError(409, "conflict", f"Key {old.key_id} has expired: make a new one.")
    return _fresh(
        services,
        tenant_id=old.tenant_id,
        name=old.name,
        scopes=old.scopes,
        limits=old.limits,
        addresses=old.addresses,
        expires_at=None if old.expires_at is None else now + (old.expires_at - old.created_at),
    )


def _fields_of(body: KeyChange, now: float) -> dict[str, Any]:
    """What changes, as fields of `ApiKey`."""
    fields: dict[str, Any] = {}
    if "name" in body:
        fields["name"] = body["name"]
    if "scopes" in body:
        fields["scopes"] = tuple(body["scopes"])
    if "addresses" in body:
        fields["addresses"] = tuple(body["addresses"])
    if "limits" in body:
        limits = body["limits"]
        fields["limits"] = None if limits is None else as_values(limits, Limits)
    if "expires_in_s" in body:
        life = body["expires_in_s"]
        fields["expires_at"] = None if life is None else now + life
        fields["rotated_to"] = None
    return fields
