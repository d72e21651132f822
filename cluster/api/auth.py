"""The door: every route names the scopes that may pass; the key comes in the header and nowhere else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from cluster.api.errors import ApiError
from tenants.api_key import Scope
from tenants.auth import DisabledTenant, Identity, InvalidKey
from tenants.store import StoreUnavailable

STORE_RETRY_S = 1.0

_bearer = HTTPBearer(auto_error=False, scheme_name="ApiKey", description="A headrace key: `hr-…`")


def require(*scopes: Scope) -> Callable[..., Awaitable[Identity]]:
    """A dependency that lets a key of any of `scopes` pass, as its `Identity`.

    Answers 401 for no, a malformed, an unknown, a deleted or an expired key, alike; 403 for a disabled
    tenant or a missing scope; 503 if nobody can say who the key belongs to.
    """

    async def identity(
        request: Request, credentials: HTTPAuthorizationCredentials | None = Depends(_bearer)
    ) -> Identity:
        if credentials is None:
            raise _unauthorized(
                "missing_api_key", "No API key: send the header 'Authorization: Bearer hr-…'."
            )
        found = await _who_is(request, credentials.credentials)
        if not set(scopes) & set(found.scopes):
            raise ApiError(403, "insufficient_scope", f"This needs a key of scope {' or '.join(scopes)}.")
        return found

    return identity


def store_unavailable() -> ApiError:
    """503: the record of tenants and keys does not answer."""
    message = "Keys and tenants cannot be looked up at the moment."
    return ApiError(503, "store_unavailable", message, retry_after_s=STORE_RETRY_S)


async def _who_is(request: Request, key: str) -> Identity:
    try:
        return await request.app.state.services.authenticator.authenticate(key)  # type: ignore[no-any-return]
    except InvalidKey:
        raise _unauthorized("invalid_api_key", "This API key is not valid.") from None
    except DisabledTenant:
        raise ApiError(403, "tenant_disabled", "This tenant is disabled.") from None
    except StoreUnavailable:
        raise store_unavailable() from None


def _unauthorized(code: str, message: str) -> ApiError:
    return ApiError(401, code, message, headers={"WWW-Authenticate": "Bearer"})
