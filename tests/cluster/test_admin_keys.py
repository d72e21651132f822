"""Keys: shown once, with limits, addresses and an end of their own, and rotated with an overlap."""

from __future__ import annotations

import pytest

from tenants.api_key import ApiKey, hash_key, is_well_formed
from tenants.audit import Actor
from tenants.auth import InvalidKey
from tests.builders_tenants import SECRET
from tests.cluster.fakes import WALL_TIME
from tests.cluster.office import Office, told, words

DAY_S = 86_400


@pytest.fixture
async def office() -> Office:
    return await Office().open()


async def works(office: Office, key: str) -> bool:
    try:
        await office.authenticator.authenticate(key, None)
    except InvalidKey:
        return False
    return True


async def test_a_new_key_is_shown_once_and_works(office: Office) -> None:
    body = {
        "tenant_id": "globex",
        "name": "web",
        "scopes": ["inference", "metrics"],
        "limits": {"requests_per_min": 5},
    }
    answer = await office.ask("POST", "/keys", body)
    made = answer.json()
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["location"] == f"/admin/v1/keys/{made['key_id']}"
    assert is_well_formed(made["key"])
    account = await office.authenticator.authenticate(made["key"], None)
    assert (account.tenant.tenant_id, account.key.scopes) == ("globex", ("inference", "metrics"))
    assert made == {
        "object": "key",
        "key_id": account.key.key_id,
        "tenant_id": "globex",
        "name": "web",
        "scopes": ["inference", "metrics"],
        "hint": made["key"][-4:],
        "limits": {
            "requests_per_min": 5,
            "input_tokens_per_min": None,
            "output_tokens_per_min": None,
            "burst_s": 60,
            "max_concurrency": None,
            "budget_day": None,
            "budget_month": None,
        },
        "addresses": [],
        "created_at": WALL_TIME,
        "expires_at": None,
        "version": 1,
        "rotated_to": None,
        "key": made["key"],
    }
    shown = await office.ask("GET", f"/keys/{made['key_id']}")
    assert shown.json() == {name: value for name, value in made.items() if name != "key"}


async def test_no_answer_but_the_first_holds_a_key_or_its_hash(office: Office) -> None:
    made = await office.make_key()
    path = f"/keys/{made['key_id']}"
    answers = [
        await office.ask("GET", path),
        await office.ask("GET", "/keys"),
        await office.ask("GET", "/keys?tenant_id=globex"),
        await office.ask("PATCH", path, {"name": "n"}),
        await office.ask("POST", f"{path}/rotate", {}),
        await office.ask("DELETE", path),
        await office.ask("GET", "/audit"),
    ]
    for answer in answers:
        assert made["key"] not in answer.text
        assert hash_key(SECRET, made["key"]) not in answer.text
        assert "key_hash" not in answer.text


async def test_a_key_that_asks_for_nothing_may_infer_for_ever_from_anywhere(office: Office) -> None:
    made = await office.make_key()
    assert (made["scopes"], made["expires_at"], made["limits"]) == (["inference"], None, None)
    assert (made["name"], made["addresses"]) == ("", [])


async def test_a_key_ends_when_it_was_told_to(office: Office) -> None:
    made = await office.make_key(expires_in_s=60)
    assert made["expires_at"] == WALL_TIME + 60
    assert await works(office, made["key"])
    office.clock.advance(60)
    assert not await works(office, made["key"])


async def test_addresses_become_the_networks_that_hold_them(office: Office) -> None:
    made = await office.make_key(addresses=["10.1.2.3/8", "192.0.2.7", "2001:DB8::1/32", "::1"])
    assert made["addresses"] == ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "::1/128"]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"scopes": []}, "invalid_value", "scopes"),
        ({"scopes": ["root"]}, "invalid_value", "scopes.0"),
        ({"scopes": ["admin", "admin"]}, "invalid_value", "scopes"),
        ({"scopes": "admin"}, "invalid_type", "scopes"),
        ({"expires_in_s": 0}, "invalid_value", "expires_in_s"),
        ({"expires_in_s": 10**12}, "invalid_value", "expires_in_s"),
        ({"expires_in_s": True}, "invalid_type", "expires_in_s"),
        ({"expires_in_s": "60"}, "invalid_type", "expires_in_s"),
        ({"limits": {"weight": 1}}, "unknown_parameter", "limits.weight"),
        ({"limits": {"max_concurrency": 0}}, "invalid_value", "limits.max_concurrency"),
        ({"addresses": ["somewhere"]}, "invalid_value", "addresses.0"),
        ({"addresses": ["::1", "10.0.0.0/33"]}, "invalid_value", "addresses.1"),
        ({"addresses": ["10.0.0.0/255.0.0.0"]}, "invalid_value", "addresses.0"),
        ({"addresses": ["fe80::1%eth0"]}, "invalid_value", "addresses.0"),
        ({"addresses": ["::1"] * 65}, "invalid_value", "addresses"),
        ({"name": "a\nb"}, "invalid_value", "name"),
        ({"tenant_id": "Globex"}, "invalid_value", "tenant_id"),
        ({"key": "hr-mine"}, "unknown_parameter", "key"),
    ],
)
async def test_a_bad_key_is_400_naming_the_field(office: Office, body: dict, code: str, param: str) -> None:
    answer = await office.ask("POST", "/keys", {"tenant_id": "globex", **body})
    assert told(answer) == (400, code, param)
    assert await office.store.list_keys("globex") == []


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/keys", {"tenant_id": "globex", "name": ""}, "'name': must have 1 to 128 characters."),
        ("GET", "/keys/app", None, "'key_id': must be a key's id, as in key_0123456789abcdef."),
        (
            "GET",
            "/keys?tenant_id=Globex",
            None,
            "'tenant_id': must be 1 to 63 characters from a-z, 0-9, _ and -",
        ),
        ("GET", "/limits/globex?key_id=app", None, "'key_id': must be a key's id, as in"),
        ("GET", "/tenants/Globex", None, "'tenant_id': must be 1 to 63 characters from a-z"),
        ("GET", "/usage?by=hour", None, "'by': must be one or more of day, model and key, as in day,model."),
        ("GET", "/audit?before=x", None, "'before': must be an entry's id, as in 1796000000000-0."),
    ],
)
async def test_a_value_of_another_form_is_told_which_form_is_wanted(
    office: Office, method: str, path: str, body: object, said: str
) -> None:
    answer = await office.ask(method, path, body)
    assert answer.status_code == 400
    assert words(answer).startswith(said)


async def test_a_condition_of_another_form_is_told_which_form_is_wanted(office: Office) -> None:
    answer = await office.ask("GET", "/tenants/globex", headers={"if-none-match": "3"})
    assert answer.status_code == 400
    assert words(answer).endswith("""must be * or ETags in quotes, as in "3".""")


async def test_keys_are_listed_of_one_tenant_or_of_all(office: Office) -> None:
    made = [(await office.make_key())["key_id"] for _ in range(3)]
    of_globex = (await office.ask("GET", "/keys?tenant_id=globex")).json()
    assert [key["key_id"] for key in of_globex["data"]] == sorted(made)
    everybody = [key["key_id"] for key in (await office.ask("GET", "/keys")).json()["data"]]
    assert everybody == sorted(everybody)
    assert len(everybody) == 3 + 4


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"name": "app"}, "name", "app"),
        ({"scopes": ["metrics"]}, "scopes", ["metrics"]),
        ({"addresses": ["10.0.0.0/8"]}, "addresses", ["10.0.0.0/8"]),
        ({"expires_in_s": 30}, "expires_at", WALL_TIME + 30),
        ({"expires_in_s": None}, "expires_at", None),
        ({"limits": None}, "limits", None),
    ],
)
async def test_a_change_replaces_what_it_names_and_nothing_else(
    office: Office, body: dict, field: str, value: object
) -> None:
    made = await office.make_key(name="web", expires_in_s=60, limits={"budget_day": 5})
    changed = await office.ask("PATCH", f"/keys/{made['key_id']}", body)
    del made["key"]
    assert (changed.status_code, changed.json()) == (200, {**made, field: value, "version": 2})


async def test_a_changed_key_is_known_at_once_in_this_gateway(office: Office) -> None:
    made = await office.make_key()
    assert await works(office, made["key"])
    await office.ask("PATCH", f"/keys/{made['key_id']}", {"scopes": ["metrics"]})
    account = await office.authenticator.authenticate(made["key"], None)
    assert account.key.scopes == ("metrics",)


async def test_a_deleted_key_is_dead_at_once(office: Office) -> None:
    made = await office.make_key()
    assert await works(office, made["key"])
    answer = await office.ask("DELETE", f"/keys/{made['key_id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not await works(office, made["key"])


async def test_the_last_way_in_is_not_thrown_away(office: Office) -> None:
    own = f"/keys/{await office.id_of('admin')}"
    assert told(await office.ask("DELETE", own)) == (409, "conflict", None)
    assert told(await office.ask("PATCH", own, {"scopes": ["admin:read"]})) == (409, "conflict", None)
    assert (await office.ask("PATCH", own, {"scopes": ["metrics", "admin"]})).status_code == 200
    assert (await office.ask("PATCH", own, {"name": "mine"})).status_code == 200
    assert (await office.ask("GET", "/tenants")).status_code == 200


HERE = "127.0.0.1"
"""Where the office asks from."""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"expires_in_s": 1}, 409),
        ({"expires_in_s": 10 * 366 * DAY_S}, 409),
        ({"expires_in_s": None}, 200),
        ({"addresses": ["10.0.0.0/8"]}, 409),
        ({"addresses": ["10.0.0.0/8", f"{HERE}/8"]}, 200),
        ({"addresses": []}, 200),
    ],
)
async def test_the_own_key_gets_no_end_and_no_addresses_that_refuse_its_caller(
    office: Office, body: dict, status: int
) -> None:
    own = f"/keys/{await office.id_of('admin')}"
    before = (await office.ask("GET", own)).json()
    answer = await office.ask("PATCH", own, body)
    assert answer.status_code == status
    office.clock.advance(DAY_S)
    after = await office.ask("GET", own)
    assert after.status_code == 200
    if status == 409:
        assert told(answer) == (409, "conflict", None)
        assert after.json() == before


async def test_where_a_caller_behind_the_proxy_asks_from_is_what_the_proxy_says(office: Office) -> None:
    own = f"/keys/{await office.id_of('admin')}"
    headers = {"x-forwarded-for": "10.1.2.3"}
    refused = await office.ask("PATCH", own, {"addresses": [HERE]}, headers=headers)
    assert told(refused) == (409, "conflict", None)
    assert "10.1.2.3" in words(refused)
    changed = await office.ask("PATCH", own, {"addresses": ["10.0.0.0/8"]}, headers=headers)
    assert changed.status_code == 200


async def test_another_key_may_be_given_an_end_and_any_addresses(office: Office) -> None:
    other = f"/keys/{(await office.make_key(scopes=['admin']))['key_id']}"
    assert (await office.ask("PATCH", other, {"expires_in_s": 1})).status_code == 200
    assert (await office.ask("PATCH", other, {"addresses": ["10.0.0.0/8"]})).status_code == 200


class TestRotation:
    FIELDS = {  # noqa: RUF012
        "name": "web",
        "scopes": ["inference", "metrics"],
        "limits": {"budget_day": 5},
        "addresses": ["10.0.0.0/8"],
    }

    async def test_the_new_key_is_like_the_old_one_which_ends_after_the_overlap(self, office: Office) -> None:
        old = await office.make_key(scopes=["inference"])
        answer = await office.ask("POST", f"/keys/{old['key_id']}/rotate", {"overlap_s": 60})
        new = answer.json()
        assert answer.status_code == 201
        assert new["key"] != old["key"]
        assert await works(office, old["key"])
        assert await works(office, new["key"])
        office.clock.advance(60)
        assert not await works(office, old["key"])
        assert await works(office, new["key"])

    async def test_it_has_the_same_name_scopes_limits_and_addresses(self, office: Office) -> None:
        old = await office.make_key(**self.FIELDS)
        new = (await office.ask("POST", f"/keys/{old['key_id']}/rotate", {})).json()
        for name in (*self.FIELDS, "tenant_id", "expires_at"):
            assert new[name] == old[name]

    async def test_without_an_overlap_it_is_a_day(self, office: Office) -> None:
        old = await office.make_key()
        await office.ask("POST", f"/keys/{old['key_id']}/rotate", {})
        shown = (await office.ask("GET", f"/keys/{old['key_id']}")).json()
        assert shown["expires_at"] == WALL_TIME + DAY_S

    async def test_with_an_overlap_of_0_the_old_one_is_dead_at_once(self, office: Office) -> None:
        old = await office.make_key()
        assert await works(office, old["key"])
        await office.ask("POST", f"/keys/{old['key_id']}/rotate", {"overlap_s": 0})
        assert not await works(office, old["key"])

    async def test_the_old_one_never_lives_longer_than_it_would_have(self, office: Office) -> None:
        old = await office.make_key(expires_in_s=100)
        office.clock.advance(40)
        new = (await office.ask("POST", f"/keys/{old['key_id']}/rotate", {"overlap_s": DAY_S})).json()
        shown = (await office.ask("GET", f"/keys/{old['key_id']}")).json()
        assert shown["expires_at"] == WALL_TIME + 100
        assert new["expires_at"] == WALL_TIME + 40 + 100

    async def test_what_has_expired_is_not_renewed(self, office: Office) -> None:
        old = await office.make_key(expires_in_s=1)
        office.clock.advance(1)
        answer = await office.ask("POST", f"/keys/{old['key_id']}/rotate", {})
        assert told(answer) == (409, "conflict", None)
        assert len(await office.store.list_keys("globex")) == 1

    async def test_the_answer_tells_until_when_the_old_one_works(self, office: Office) -> None:
        old = await office.make_key()
        new = (await office.ask("POST", f"/keys/{old['key_id']}/rotate", {"overlap_s": 60})).json()
        assert (new["old_key_id"], new["old_expires_at"]) == (old["key_id"], WALL_TIME + 60)
        assert (new["expires_at"], new["rotated_to"]) == (None, None)

    async def test_a_key_in_its_overlap_is_not_rotated_again_and_names_the_one_that_is(
        self, office: Office
    ) -> None:
        old = await office.make_key(expires_in_s=90 * DAY_S)
        path = f"/keys/{old['key_id']}"
        new = (await office.ask("POST", f"{path}/rotate", {})).json()
        num_changes = await office.store.change_count()
        answer = await office.ask("POST", f"{path}/rotate", {})
        assert told(answer) == (409, "conflict", None)
        assert await office.store.change_count() == num_changes
        assert new["key_id"] in words(answer)
        assert (await office.ask("GET", path)).json()["rotated_to"] == new["key_id"]
        assert len(await office.store.list_keys("globex")) == 2
        third = (await office.ask("POST", f"/keys/{new['key_id']}/rotate", {})).json()
        assert third["expires_at"] == WALL_TIME + 90 * DAY_S

    async def test_a_new_end_undoes_a_rotation(self, office: Office) -> None:
        old = await office.make_key()
        path = f"/keys/{old['key_id']}"
        await office.ask("POST", f"{path}/rotate", {})
        changed = (await office.ask("PATCH", path, {"expires_in_s": None})).json()
        assert (changed["expires_at"], changed["rotated_to"]) == (None, None)
        assert (await office.ask("POST", f"{path}/rotate", {})).status_code == 201

    async def test_a_rotation_that_another_one_overtakes_is_refused_and_leaves_no_key_behind(
        self, office: Office, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = await office.make_key()
        path, create_key = f"/keys/{old['key_id']}/rotate", office.store.create_key
        overtaking: list[dict[str, str]] = []

        async def overtaken(key: ApiKey, by: Actor) -> None:
            monkeypatch.setattr(office.store, "create_key", create_key)
            overtaking.append((await office.ask("POST", path, {})).json())
            await create_key(key, by)

        monkeypatch.setattr(office.store, "create_key", overtaken)
        assert told(await office.ask("POST", path, {})) == (409, "conflict", None)
        (made,) = overtaking
        assert {key.key_id for key in await office.store.list_keys("globex")} == {
            old["key_id"],
            made["key_id"],
        }
        assert (await office.ask("GET", f"/keys/{old['key_id']}")).json()["rotated_to"] == made["key_id"]

    @pytest.mark.parametrize("overlap", [-1, 30 * DAY_S + 1, 1.5, None, "60"])
    async def test_an_overlap_is_0_to_30_days(self, office: Office, overlap: object) -> None:
        old = await office.make_key()
        answer = await office.ask("POST", f"/keys/{old['key_id']}/rotate", {"overlap_s": overlap})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "overlap_s")
        assert len(await office.store.list_keys("globex")) == 1

    async def test_one_s_own_key_may_be_rotated(self, office: Office) -> None:
        own = await office.id_of("admin")
        new = (await office.ask("POST", f"/keys/{own}/rotate", {"overlap_s": 0})).json()
        assert (await office.ask("GET", "/tenants")).status_code == 401
        assert (await office.ask("GET", "/tenants", key=new["key"])).status_code == 200
