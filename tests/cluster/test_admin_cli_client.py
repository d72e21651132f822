"""The client of the commands for operators: paging, ETags, one retry, and two kinds of failure."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from cluster.admin_cli.client import AdminClient
from cluster.admin_cli.failures import CannotRun, RefusedByServer

KEY = "hr-a-key-of-the-tests"


class Server:
    """Plays answers one by one and remembers what it was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, url: str = "http://cluster") -> AdminClient:
        return AdminClient(url, KEY, httpx.MockTransport(self))

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.asked if request.content]


def shown(version: int = 1, **fields: Any) -> httpx.Response:
    return httpx.Response(200, json={"object": "thing", **fields}, headers={"ETag": f'"{version}"'})


def refused(status: int, message: str, param: str | None = None) -> httpx.Response:
    return httpx.Response(
        status, json={"error": {"message": message, "type": "t", "param": param, "code": "c"}}
    )


def page(rows: list[Any], next_after: str | None) -> httpx.Response:
    return shown(data=rows, has_more=next_after is not None, next_after=next_after)


@pytest.mark.parametrize(
    "url", ["http://cluster", "http://cluster/", "http://cluster/v1", "http://cluster/v1/"]
)
def test_it_asks_the_admin_api_of_the_address_with_the_key(url: str) -> None:
    server = Server(shown())
    server.client(url).get("/tiers/free", key_id=None, by="day")
    (request,) = server.asked
    assert str(request.url) == "http://cluster/admin/v1/tiers/free?by=day"
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_all_pages_are_read_in_order() -> None:
    server = Server(page([1, 2], "b"), page([3], "c"), page([], None))
    assert server.client().list_all("/things", tenant_id="acme") == [1, 2, 3]
    assert [dict(request.url.params) for request in server.asked] == [
        {"limit": "1000", "tenant_id": "acme"},
        {"limit": "1000", "after": "b", "tenant_id": "acme"},
        {"limit": "1000", "after": "c", "tenant_id": "acme"},
    ]


def test_a_change_is_made_from_what_was_read_and_says_so() -> None:
    server = Server(shown(version=4, n=1), shown(version=5, n=2))
    assert server.client().change("/things/a", lambda there: {"n": there["n"] + 1})["n"] == 2
    assert [request.method for request in server.asked] == ["GET", "PATCH"]
    assert server.asked[1].headers["if-match"] == '"4"'
    assert server.bodies == [{"n": 2}]


def test_a_change_that_somebody_else_overtook_is_made_anew_from_theirs() -> None:
    server = Server(
        shown(version=4, n=1), refused(412, "stale"), shown(version=5, n=7), shown(version=6, n=8)
    )
    assert server.client().change("/things/a", lambda there: {"n": there["n"] + 1})["n"] == 8
    assert server.bodies == [{"n": 2}, {"n": 8}]
    assert [request.headers.get("if-match") for request in server.asked] == [None, '"4"', None, '"5"']


def test_a_change_that_is_overtaken_twice_is_refused() -> None:
    server = Server(shown(), refused(412, "stale"), shown(), refused(412, "stale again"))
    with pytest.raises(RefusedByServer, match="stale again") as raised:
        server.client().change("/things/a", lambda there: {})
    assert raised.value.status == 412
    assert len(server.asked) == 4


def test_a_write_from_a_known_version_names_it() -> None:
    server = Server(shown(), httpx.Response(204))
    client = server.client()
    client.patch("/things/a", {"n": 1}, version=3)
    client.delete("/things/a", version=4)
    assert [request.headers["if-match"] for request in server.asked] == ['"3"', '"4"']


def test_a_write_without_a_version_is_unconditional() -> None:
    server = Server(shown(), httpx.Response(204))
    server.client().patch("/things/a", {})
    server.client().delete("/things/a")
    assert [request.headers.get("if-match") for request in server.asked] == [None, None]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refused(404, "There is no tenant x."), "There is no tenant x."),
        (refused(400, "'tier': unknown.", "tier"), "'tier': unknown."),
        (refused(400, "must be a day", "from"), "from: must be a day"),
        (refused(401, "This API key is not valid."), "This API key is not valid."),
    ],
)
def test_a_refusal_has_the_server_s_words_and_the_field(answer: httpx.Response, said: str) -> None:
    with pytest.raises(RefusedByServer) as raised:
        Server(answer).client().get("/things/a")
    assert (str(raised.value), raised.value.status) == (said, answer.status_code)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refused(503, "Keys cannot be looked up."), "Keys cannot be looked up."),
        (httpx.Response(200, text="<html>"), "what answers is no headrace cluster (200)"),
        (httpx.Response(200, json={"steps": 5}), "what answers is no headrace cluster (200)"),
        (httpx.Response(200, json=[]), "what answers is no headrace cluster (200)"),
        (httpx.Response(302, headers={"location": "http://x"}), "what answers is no headrace cluster (302)"),
        (httpx.Response(502, text="bad gateway"), "what answers is no headrace cluster (502)"),
        (httpx.Response(404, json={"error": "no"}), "what answers is no headrace cluster (404)"),
        (httpx.ConnectError("no"), "nothing answers at http://cluster (ConnectError)"),
        (httpx.ReadTimeout("no"), "nothing answers at http://cluster (ReadTimeout)"),
    ],
)
def test_what_is_no_answer_of_ours_could_not_be_asked(answer: Any, said: str) -> None:
    with pytest.raises(CannotRun) as raised:
        Server(answer).client().get("/things/a")
    assert str(raised.value) == said


def test_a_list_without_rows_is_not_ours() -> None:
    with pytest.raises(CannotRun, match="no headrace cluster"):
        Server(shown()).client().list_all("/things")


@pytest.mark.parametrize("url", ["cluster:8000", "127.0.0.1:8572", "ftp://cluster", ""])
def test_an_address_without_http_is_told_to_have_it(url: str) -> None:
    with pytest.raises(CannotRun, match="give it with http:// or https:// before it") as raised:
        AdminClient(url, KEY)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://a b"])
def test_an_address_that_is_none_is_told_without_the_key(url: str) -> None:
    with pytest.raises(CannotRun, match="nothing answers at") as raised:
        AdminClient(url, KEY).get("/tiers")
    assert KEY not in str(raised.value)
