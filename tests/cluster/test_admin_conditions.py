"""ETag, If-Match and If-None-Match: nobody's change is lost to another's."""

from __future__ import annotations

import httpx
import pytest

from cluster.api.admin.etag import check_match, is_known
from cluster.api.errors import ApiError
from tests.cluster.office import Office, told

RESOURCES = ["/tiers/unlimited", "/tenants/globex", "/keys/{key}"]
CHANGES: dict[str, object] = {
    "/tiers/unlimited": {"terms": {"weight": 2}},
    "/tenants/globex": {"name": "x"},
    "/keys/{key}": {"name": "x"},
}


class Shelf:
    """An office and the address of one of its resources, which has version 1."""

    def __init__(self, office: Office, path: str, change: object) -> None:
        self.office = office
        self.path = path
        self.change = change

    async def ask(self, method: str, **headers: str) -> httpx.Response:
        body = self.change if method == "PATCH" else None
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.office.ask(method, self.path, body, headers=sent)


@pytest.fixture(params=RESOURCES)
async def shelf(request: pytest.FixtureRequest) -> Shelf:
    office = await Office().open()
    key = (await office.make_key())["key_id"]
    return Shelf(office, request.param.format(key=key), CHANGES[request.param])


async def test_the_etag_is_the_version_in_quotes_and_grows_with_each_change(shelf: Shelf) -> None:
    assert (await shelf.ask("GET")).headers["etag"] == '"1"'
    changed = await shelf.ask("PATCH")
    assert (changed.headers["etag"], changed.json()["version"]) == ('"2"', 2)
    assert (await shelf.ask("GET")).headers["etag"] == '"2"'


async def test_a_new_resource_has_one_too() -> None:
    office = await Office().open()
    for path, body in (
        ("/tiers", {"name": "x"}),
        ("/tenants", {"tenant_id": "x", "tier": "x"}),
        ("/keys", {"tenant_id": "x"}),
    ):
        made = await office.ask("POST", path, body)
        assert (made.status_code, made.headers["etag"]) == (201, '"1"')


@pytest.mark.parametrize("condition", ['"1"', '"7", "1"', "*"])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_change_of_the_version_that_is_there_is_made(
    shelf: Shelf, method: str, condition: str
) -> None:
    assert (await shelf.ask(method, if_match=condition)).status_code in (200, 204)


@pytest.mark.parametrize("condition", ['"1"', '"3"', 'W/"2"', '""', '"01", "x"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_change_of_another_version_is_412_and_not_made(
    shelf: Shelf, method: str, condition: str
) -> None:
    await shelf.ask("PATCH")
    assert told(await shelf.ask(method, if_match=condition)) == (412, "precondition_failed", "If-Match")
    assert (await shelf.ask("GET")).json()["version"] == 2


async def test_even_a_change_that_would_change_nothing_is_412_of_another_version(shelf: Shelf) -> None:
    await shelf.ask("PATCH")
    assert (await shelf.ask("PATCH", if_match='"1"')).status_code == 412


@pytest.mark.parametrize("condition", ["", "1", '"1', '"1" "2"', '*, "1"', '"é"', 'w/"1"', '"' * 1025])
@pytest.mark.parametrize(
    ("method", "header"), [("PATCH", "If-Match"), ("DELETE", "If-Match"), ("GET", "If-None-Match")]
)
async def test_a_malformed_condition_is_400_naming_the_header(
    shelf: Shelf, method: str, header: str, condition: str
) -> None:
    body = shelf.change if method == "PATCH" else None
    answer = await shelf.office.ask(method, shelf.path, body, headers={header: condition})
    assert told(answer) == (400, "invalid_value", header)


@pytest.mark.parametrize("condition", ['"1"', 'W/"1"', '"7", "1"', "*"])
async def test_who_has_the_version_is_told_so_without_a_body(shelf: Shelf, condition: str) -> None:
    answer = await shelf.ask("GET", if_none_match=condition)
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", '"1"')


async def test_who_has_another_version_is_shown_this_one(shelf: Shelf) -> None:
    answer = await shelf.ask("GET", if_none_match='"2", "10"')
    assert (answer.status_code, answer.json()["version"]) == (200, 1)


@pytest.mark.parametrize(
    ("header", "strong", "weak"),
    [
        (None, True, False),
        ("*", True, True),
        ('"12"', True, True),
        ('W/"12"', False, True),
        ('"1","2"', False, False),
        ('"a,b" , "12"', True, True),
        ('"1, 12"', False, False),
    ],
)
def test_tags_are_compared_whole(header: str | None, strong: bool, weak: bool) -> None:
    assert is_known(header, 12) is weak
    if strong:
        check_match(header, 12)
    else:
        with pytest.raises(ApiError) as refusal:
            check_match(header, 12)
        assert refusal.value.status == 412
