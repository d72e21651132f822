"""Lists in pages: joined, the pages are the list."""

from __future__ import annotations

import pytest

from cluster.api.admin.paging import PageQuery, page_of
from tests.cluster.office import Office, told


async def a_list(after: str, limit: int) -> list[str]:
    return [name for name in "abcdefg" if name > after][:limit]


@pytest.mark.parametrize("limit", range(1, 9))
async def test_pages_joined_are_the_list(limit: int) -> None:
    after, seen = "", []
    while True:
        page = await page_of(a_list, PageQuery(limit=limit, after=after), str.upper, str)
        assert len(page.data) == limit or not page.has_more
        seen += page.data
        if not page.has_more:
            break
        assert page.next_after is not None
        after = page.next_after
    assert (seen, page.next_after) == (list("ABCDEFG"), None)


@pytest.fixture
async def office() -> Office:
    return await Office().open()


@pytest.mark.parametrize(
    ("path", "field"), [("/tiers", "name"), ("/tenants", "tenant_id"), ("/keys", "key_id")]
)
async def test_every_list_has_pages(office: Office, path: str, field: str) -> None:
    whole = (await office.ask("GET", path)).json()
    assert (whole["object"], whole["has_more"], whole["next_after"]) == ("list", False, None)
    assert len(whole["data"]) > 1
    first = (await office.ask("GET", f"{path}?limit=1")).json()
    assert (first["data"], first["has_more"]) == (whole["data"][:1], True)
    assert first["next_after"] == whole["data"][0][field]
    rest = (await office.ask("GET", f"{path}?after={first['next_after']}")).json()
    assert rest == {**whole, "data": whole["data"][1:]}


async def test_keys_of_one_tenant_have_pages_too(office: Office) -> None:
    made = sorted([(await office.make_key())["key_id"] for _ in range(3)])
    page = (await office.ask("GET", f"/keys?tenant_id=globex&limit=1&after={made[0]}")).json()
    assert ([key["key_id"] for key in page["data"]], page["has_more"]) == ([made[1]], True)


@pytest.mark.parametrize("path", ["/tiers", "/tenants", "/keys", "/audit", "/usage"])
@pytest.mark.parametrize("limit", ["0", "1001", "-1", "", "x", "1.5"])
async def test_a_page_holds_1_to_1000(office: Office, path: str, limit: str) -> None:
    answer = await office.ask("GET", f"{path}?limit={limit}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


async def test_after_is_bounded(office: Office) -> None:
    assert told(await office.ask("GET", f"/tenants?after={'x' * 129}")) == (400, "invalid_value", "after")
