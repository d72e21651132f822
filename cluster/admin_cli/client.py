"""The operator's REST API as commands ask it: one key, paging, ETags, two kinds of failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx

from cluster.admin_cli.failures import CannotRun, RefusedByServer

Json = dict[str, Any]

CALL_TIMEOUT_S = 10.0
_PAGE = 1000
_STALE = 412


class AdminClient:
    """Owns the connections to one cluster. Paths are those behind `/admin/v1`.

    Every call raises `RefusedByServer` with the server's own words, or `CannotRun` if no answer is ours.
    """

    def __init__(self, url: str, key: str, transport: httpx.BaseTransport | None = None) -> None:
        self._url = url
        if not url.startswith(("http://", "https://")):
            raise CannotRun(f"--url {url}: give it with http:// or https:// before it")
        try:
            self._http = httpx.Client(
                base_url=url.rstrip("/").removesuffix("/v1"),
                headers={"Authorization": f"Bearer {key}"},
                timeout=CALL_TIMEOUT_S,
                trust_env=False,
                verify=not url.startswith("http://"),  # without TLS its certificates, 50 ms, are not loaded
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise self._nothing_answers(error) from None

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Json:
        return self._told(self._send("GET", path, query=query))

    def pages(self, path: str, *, size: int = _PAGE, **query: Any) -> Iterator[Json]:
        """Lists, one after the other, until there is no more."""
        after = None
        while True:
            page = self.get(path, limit=size, after=after, **query)
            if not isinstance(page.get("data"), list):
                raise CannotRun("what answers is no headrace cluster (a list without data)")
            yield page
            after = page.get("next_after")
            if not page.get("has_more") or after is None:
                return

    def list_all(self, path: str, **query: Any) -> list[Json]:
        """What all pages hold."""
        return [row for page in self.pages(path, **query) for row in page["data"]]

    def create(self, path: str, body: Json) -> Json:
        return self._told(self._send("POST", path, body=body))

    def patch(self, path: str, body: Json, *, version: int | None = None) -> Json:
        return self._told(self._send("PATCH", path, body=body, etag=_etag(version)))

    def delete(self, path: str, *, version: int | None = None) -> None:
        answer = self._send("DELETE", path, etag=_etag(version))
        if answer.status_code != 204:
            self._told(answer)

    def change(self, path: str, patch_from: Callable[[Json], Json]) -> Json:
        """Reads, and writes what `patch_from` makes of it; once again if somebody else wrote in between."""
        for is_last in (False, True):
            answer = self._send("GET", path)
            body = patch_from(self._told(answer))
            answer = self._send("PATCH", path, body=body, etag=answer.headers.get("etag"))
            if answer.status_code != _STALE or is_last:
                break
        return self._told(answer)

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Json | None = None,
        body: Json | None = None,
        etag: str | None = None,
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        headers = {} if etag is None else {"If-Match": etag}
        try:
            return self._http.request(method, f"/admin/v1{path}", params=given, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._nothing_answers(error) from None

    def _nothing_answers(self, error: Exception) -> CannotRun:
        return CannotRun(f"nothing answers at {self._url} ({type(error).__name__})")

    def _told(self, answer: httpx.Response) -> Json:
        """The object that a good answer is."""
        try:
            told = answer.json()
            if answer.is_success and isinstance(told["object"], str):
                return dict(told)
            error = told["error"]
            message, param = str(error["message"]), error["param"]
        except (ValueError, KeyError, TypeError):
            raise CannotRun(f"what answers is no headrace cluster ({answer.status_code})") from None
        if param and str(param) not in message:
            message = f"{param}: {message}"
        if answer.is_server_error:
            raise CannotRun(message)
        raise RefusedByServer(answer.status_code, message)


def _etag(version: int | None) -> str | None:
    return None if version is None else f'"{version}"'
