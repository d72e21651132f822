"""Usage: an operator sees everybody's, a tenant its own."""

from __future__ import annotations

import pytest

from tests.cluster.office import Office, told

NOV_14 = "2023-11-14"
KEY = "key_0000000000000001"


@pytest.fixture
async def office() -> Office:
    """On 2023-11-14 two requests of globex with one key, one with another, one of acme; a day later one."""
    office = await Office().open()
    await office.served(request_id="a")
    await office.served(request_id="b", model="small")
    await office.served(request_id="c", key_id="key_0000000000000002")
    await office.served(request_id="d", tenant_id="acme")
    office.clock.advance(86_400)
    await office.served(request_id="e")
    return office


def row(requests: int, tenant_id: str = "globex", **place: str) -> dict[str, object]:
    return {
        "tenant_id": tenant_id,
        "day": place.get("day"),
        "model": place.get("model"),
        "key_id": place.get("key_id"),
        "requests": requests,
        "prompt_tokens": 10 * requests,
        "cached_tokens": 4 * requests,
        "completion_tokens": 5 * requests,
        "cost": 7 * requests,
    }


async def test_a_tenant_s_usage_by_day(office: Office) -> None:
    answer = await office.ask("GET", "/usage?tenant_id=globex")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "object": "usage",
            "from": "2023-11-01",
            "to": "2023-11-15",
            "data": [row(3, day=NOV_14), row(1, day="2023-11-15")],
            "has_more": False,
            "next_after": None,
            "omits_deleted": False,
        },
    )


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("model", [row(1, model="small"), row(3, model="tiny")]),
        ("key", [row(3, key_id=KEY), row(1, key_id="key_0000000000000002")]),
        ("key,key", [row(3, key_id=KEY), row(1, key_id="key_0000000000000002")]),
        (
            "model,day",
            [
                row(1, day=NOV_14, model="small"),
                row(2, day=NOV_14, model="tiny"),
                row(1, day="2023-11-15", model="tiny"),
            ],
        ),
    ],
)
async def test_rows_are_told_apart_by_what_is_named(office: Office, by: str, rows: object) -> None:
    assert (await office.ask("GET", f"/usage?tenant_id=globex&by={by}")).json()["data"] == rows


async def test_only_the_days_that_are_asked_for_count_both_included(office: Office) -> None:
    for days, num_requests in (
        (f"from={NOV_14}&to={NOV_14}", 3),
        (f"from={NOV_14}", 4),
        (f"to={NOV_14}", 3),
        ("from=2023-11-15", 1),
        ("from=2023-10-01&to=2023-11-13", 0),
    ):
        rows = (await office.ask("GET", f"/usage?tenant_id=globex&{days}")).json()["data"]
        assert sum(row["requests"] for row in rows) == num_requests


async def test_without_a_tenant_it_is_everybody_s_in_pages_by_tenant(office: Office) -> None:
    whole = (await office.ask("GET", "/usage?by=model")).json()
    assert whole["data"] == [row(1, "acme", model="tiny"), row(1, model="small"), row(3, model="tiny")]
    first = (await office.ask("GET", "/usage?by=model&limit=1")).json()
    assert (first["data"], first["has_more"], first["next_after"]) == (whole["data"][:1], True, "acme")
    assert first["omits_deleted"] is True
    second = (await office.ask("GET", "/usage?by=model&limit=1&after=acme")).json()
    assert (second["data"], second["has_more"], second["next_after"]) == (whole["data"][1:], False, None)


async def test_what_a_deleted_tenant_used_is_still_told(office: Office) -> None:
    await office.ask("DELETE", "/tenants/globex")
    answer = await office.ask("GET", "/usage?tenant_id=globex&by=key")
    assert sum(row["requests"] for row in answer.json()["data"]) == 4
    assert answer.json()["omits_deleted"] is False


async def test_usage_of_all_says_that_deleted_tenants_are_not_in_it(office: Office) -> None:
    await office.ask("DELETE", "/tenants/globex")
    told_of_all = (await office.ask("GET", "/usage")).json()
    assert {row["tenant_id"] for row in told_of_all["data"]} == {"acme"}
    assert told_of_all["omits_deleted"] is True


@pytest.mark.parametrize("prefix", ["/admin/v1", "/v1"])
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("from=yesterday", "from"),
        ("from=2023-11-31", "from"),
        ("from=20231101", "from"),
        ("from=2023-W48-1", "from"),
        ("to=", "to"),
        ("to=2023-11-14T00:00", "to"),
        ("from=2023-11-15&to=2023-11-14", "from"),
        ("from=2022-10-11&to=2023-11-15", "from"),
        ("by=", "by"),
        ("by=hour", "by"),
        ("by=day,", "by"),
        ("until=2023-11-14", "until"),
        ("by=day&by=model", "by"),
    ],
)
async def test_a_bad_parameter_is_400_naming_it(office: Office, prefix: str, query: str, param: str) -> None:
    answer = await office.ask("GET", f"/usage?{query}", prefix=prefix)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_400_days_may_be_asked_for_at_once(office: Office) -> None:
    assert (await office.ask("GET", "/usage?from=2022-10-12&to=2023-11-15")).status_code == 200


@pytest.mark.parametrize("scope", ["inference", "admin"])
async def test_a_tenant_sees_its_own_and_nobody_else_s(office: Office, scope: str) -> None:
    answer = await office.ask("GET", "/usage?by=key", scope=scope, prefix="/v1")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "object": "usage",
            "from": "2023-11-01",
            "to": "2023-11-15",
            "data": [row(1, "acme", key_id=KEY)],
        },
    )
    key = (await office.make_key())["key"]
    rows = (await office.ask("GET", "/usage", key=key, prefix="/v1")).json()["data"]
    assert {row["tenant_id"] for row in rows} == {"globex"}


async def test_a_tenant_cannot_name_another_one(office: Office) -> None:
    answer = await office.ask("GET", "/usage?tenant_id=globex", scope="inference", prefix="/v1")
    assert told(answer) == (400, "unknown_parameter", "tenant_id")


@pytest.mark.parametrize("scope", ["metrics", "admin:read"])
async def test_other_scopes_do_not_open_a_tenant_s_own_usage(office: Office, scope: str) -> None:
    answer = await office.ask("GET", "/usage", scope=scope, prefix="/v1")
    assert told(answer)[:2] == (403, "insufficient_scope")
