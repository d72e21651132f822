"""Every error a client can see: OpenAI's shape, one class, one table of codes.

Never a 5xx for a client's fault: SDKs retry those.
"""

from __future__ import annotations

from typing import Any

_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    499: "client_closed_request",
}
"""Of statuses that have a type of their own."""


class ApiError(Exception):
    """An answer that is an error.

    `param` names the field at fault, dotted; `retry_after_s` is there only if waiting helps.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, _general_type(self.status)),
                "param": self.param,
                "code": self.code,
            }
        }


def _general_type(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param=param)


def tenant_disabled() -> ApiError:
    return ApiError(403, "tenant_disabled", "This tenant is disabled.")


def no_capacity(message: str, *, retry_after_s: float = 1.0) -> ApiError:
    return ApiError(503, "no_capacity", message, retry_after_s=retry_after_s)


def turned_away(status: int, code: str, retry_after_s: float | None) -> ApiError:
    """For who cannot wait here: 429 if its tenant has enough that wait, else 503."""
    message = {
        "queue_full": "Enough of this tenant's requests wait already.",
        "overloaded": "It would not be answered in time: too many requests wait.",
        "deadline_exceeded": "Its turn did not come within its time limit.",
    }[code]
    return ApiError(status, code, message, retry_after_s=retry_after_s)


def deadline_exceeded() -> ApiError:
    return ApiError(503, "deadline_exceeded", "The answer was not complete within its time limit.")


def internal_error() -> ApiError:
    return ApiError(500, "internal_error", "The server failed to answer. The request id tells it apart.")
