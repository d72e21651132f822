"""The door: every route names the scopes that may pass; the key comes in the header and nowhere else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from cluster.api.errors import ApiError, tenant_disabled
from tenants.addresses import parse_address
from tenants.api_key import Scope
from tenants.auth import Authenticator, DisabledTenant, InvalidKey
from tenants.store import Account, StoreUnavailable

STORE_RETRY_S = 1.0

_bearer = HTTPBearer(auto_error=False, scheme_name="ApiKey", description="A headrace key: `hr-…`")


def require(*scopes: Scope) -> Callable[..., Awaitable[Account]]:
    """A dependency that lets a key of any of `scopes` pass, as its `Account`.

    Answers 401 for no, a malformed, an unknown, a deleted or an expired key, and for one that is used from
    elsewhere than it may be, alike; 403 for a disabled tenant or a missing scope; 503 if nobody can say who
    the key belongs to.
    """

    async def account(
        request: Request, credentials: HTTPAuthorizationCredentials | None = Depends(_bearer)
    ) -> Account:
        if credentials is None:
            raise _unauthorized(
                "missing_api_key", "No API key: send the header 'Authorization: Bearer hr-…'."
            )
        found = await _who_is(request, credentials.credentials)
        if not set(scopes) & set(found.key.scopes):
            raise ApiError(403, "insufficient_scope", f"This needs a key of scope {' or '.join(scopes)}.")
        return found

    return account


def store_unavailable() -> ApiError:
    """503: the record of tenants and keys does not answer."""
    message = "Keys and tenants cannot be looked up at the moment."
    return ApiError(503, "store_unavailable", message, retry_after_s=STORE_RETRY_S)


def client_address(request: Request) -> str | None:
    """Where a request comes from: its direct peer, or, if that is on this machine, the last that it names.

    The peer on this machine is HAProxy. Ray's configuration makes it pass on whatever `x-forwarded-for` a
    client invents; `cluster/haproxy.py` mends that: the header is the client's address and nothing else.
    Uvicorn, as Serve starts it, has put that into `request.client` already. A client behind another proxy,
    or behind another node's HAProxy, has that one's address.
    """
    peer = None if request.client is None else request.client.host
    address = parse_address(peer)
    if address is None or not address.is_loopback:
        return peer
    told = ",".join(request.headers.getlist("x-forwarded-for"))
    return told.rpartition(",")[2].strip() or peer


async def _who_is(request: Request, key: str) -> Account:
    authenticator: Authenticator = request.app.state.services.authenticator
    with refusals():
        return await authenticator.authenticate(key, client_address(request))


@contextmanager
def refusals() -> Iterator[None]:
    """What an authenticator raises, as answers."""
    try:
        yield
    except InvalidKey:
        raise _unauthorized("invalid_api_key", "This API key is not valid.") from None
    except DisabledTenant:
        raise tenant_disabled() from None
    except StoreUnavailable:
        raise store_unavailable() from None


def _unauthorized(code: str, message: str) -> ApiError:
    return ApiError(401, code, message, headers={"WWW-Authenticate": "Bearer"})
