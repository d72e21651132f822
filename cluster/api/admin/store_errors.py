"""The record's and the ledger's refusals as answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from cluster.api.auth import store_unavailable
from cluster.api.errors import ApiError
from tenants.store import Conflict, NotFound, StoreUnavailable


@contextmanager
def store_errors() -> Iterator[None]:
    """404, 409, 503. `StaleVersion` is for the caller to try again."""
    try:
        yield
    except NotFound as error:
        raise ApiError(404, "not_found", _sentence(error)) from None
    except Conflict as error:
        raise ApiError(409, "conflict", _sentence(error)) from None
    except msgspec.ValidationError as error:  # checked before, so the tier was changed in between
        message = f"The overrides do not go with the tier as it is now: {error}."
        raise ApiError(409, "conflict", message) from None
    except StoreUnavailable:
        raise store_unavailable() from None


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
