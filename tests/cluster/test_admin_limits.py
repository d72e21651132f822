"""Limits as they stand, and budgets topped up and reset."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenants.audit import Actor
from tenants.ledger.ask import Ask, Scope
from tenants.ledger.grant import Granted, Refused
from tenants.tenant import terms_of
from tenants.terms import Prices
from tenants.tier import FREE
from tests.cluster.office import Office, told, words

OVERRIDES = {"budget_day": 1000, "max_concurrency": None}
TERMS = terms_of(FREE, OVERRIDES)


@pytest.fixture
async def office() -> Office:
    office = await Office().open()
    await office.ask("PATCH", "/tenants/globex", {"overrides": OVERRIDES})
    return office


def gauge(answer: Any, kind: str, key_id: str | None = None) -> Any:
    found = [one for one in answer.json()["limits"] if (one["kind"], one["key_id"]) == (kind, key_id)]
    assert len(found) <= 1
    return found[0] if found else None


async def take(office: Office, max_tokens: int, scopes: tuple[Scope, ...] | None = None) -> Granted | Refused:
    """A request of globex that costs `max_tokens` micro-units."""
    ask = Ask(
        request_id=f"r{office.clock.now}-{max_tokens}",
        tenant_id="globex",
        key_id="key_0000000000000001",
        model="tiny",
        gateway_id="g",
        started_at=office.clock(),
        scopes=scopes or (Scope(None, TERMS),),
        prices=Prices(output=10**6),
        prompt_tokens=100,
        n=1,
        max_tokens=max_tokens,
    )
    return await office.ledger.reserve(ask)


async def test_the_terms_that_hold_and_each_limit_are_shown(office: Office) -> None:
    answer = await office.ask("GET", "/limits/globex")
    shown = answer.json()
    assert answer.status_code == 200
    assert shown["terms"] == msgspec.to_builtins(TERMS)
    assert (shown["tenant_id"], shown["key_id"], shown["model"]) == ("globex", None, "tiny")
    kinds = {one["kind"] for one in shown["limits"]}
    assert kinds == {"requests", "input_tokens", "output_tokens", "budget_day"}
    assert gauge(answer, "requests") == {
        "kind": "requests",
        "key_id": None,
        "limit": 60,
        "remaining": 60,
        "reset_s": 0.0,
        "soft": False,
    }


async def test_what_was_taken_is_missing_and_a_nearly_used_limit_is_soft(office: Office) -> None:
    assert isinstance(await take(office, 900), Granted)
    answer = await office.ask("GET", "/limits/globex")
    assert gauge(answer, "requests")["remaining"] == 59
    assert gauge(answer, "input_tokens")["remaining"] == FREE.terms.input_tokens_per_min - 100  # type: ignore[operator]
    budget = gauge(answer, "budget_day")
    assert (budget["limit"], budget["remaining"], budget["soft"]) == (1000, 100, True)
    assert gauge(answer, "requests")["soft"] is False


async def test_a_key_s_own_limits_are_shown_beside_its_tenant_s(office: Office) -> None:
    key_id = (await office.make_key(limits={"requests_per_min": 7}))["key_id"]
    answer = await office.ask("GET", f"/limits/globex?key_id={key_id}")
    assert gauge(answer, "requests")["limit"] == 60
    assert gauge(answer, "requests", key_id)["limit"] == 7
    assert answer.json()["key_limits"]["requests_per_min"] == 7
    plain = (await office.make_key())["key_id"]
    answer = await office.ask("GET", f"/limits/globex?key_id={plain}")
    assert (answer.json()["key_id"], answer.json()["key_limits"]) == (plain, None)


async def test_a_key_of_another_tenant_is_404(office: Office) -> None:
    key_id = await office.id_of("inference")
    answer = await office.ask("GET", f"/limits/globex?key_id={key_id}")
    assert told(answer) == (404, "not_found", None)
    assert words(answer) == f"Tenant globex has no key {key_id}."
    body = {"window": "day", "amount": 1, "key_id": key_id}
    assert (await office.ask("POST", "/limits/globex/top-up", body)).status_code == 404


async def test_a_top_up_pays_for_the_next_request_at_once(office: Office) -> None:
    assert isinstance(await take(office, 1000), Granted)
    assert isinstance(await take(office, 500), Refused)
    answer = await office.ask("POST", "/limits/globex/top-up", {"amount": 500, "window": "day"})
    assert answer.status_code == 200
    assert gauge(answer, "budget_day")["remaining"] == 500
    assert isinstance(await take(office, 500), Granted)


async def test_a_reset_makes_all_of_the_budget_available_again(office: Office) -> None:
    await office.served(cost=1000)
    assert isinstance(await take(office, 500), Refused)
    answer = await office.ask("POST", "/limits/globex/reset", {"window": "day"})
    assert (answer.status_code, gauge(answer, "budget_day")["remaining"]) == (200, 1000)
    assert isinstance(await take(office, 999), Granted)


async def test_a_reset_after_a_top_up_makes_both_available_and_a_second_changes_nothing(
    office: Office,
) -> None:
    await office.ask("POST", "/limits/globex/top-up", {"amount": 500, "window": "day"})
    await office.served(cost=304)
    for _ in range(2):
        answer = await office.ask("POST", "/limits/globex/reset", {"window": "day"})
        shown = gauge(answer, "budget_day")
        assert (shown["remaining"], shown["limit"], shown["soft"]) == (1500, 1500, False)


async def test_a_key_s_own_budget_is_topped_up_alone(office: Office) -> None:
    key_id = (await office.make_key(limits={"budget_month": 50}))["key_id"]
    body = {"amount": 5, "window": "month", "key_id": key_id}
    answer = await office.ask("POST", "/limits/globex/top-up", body)
    assert gauge(answer, "budget_month", key_id)["remaining"] == 55
    assert gauge(answer, "budget_day")["remaining"] == 1000


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("top-up", {"window": [None, "day"], "amount": [None, 5]}),
        ("reset", {"window": [None, "day"]}),
    ],
)
async def test_who_adds_money_is_on_record(office: Office, path: str, changes: object) -> None:
    body = {"window": "day"} | ({"amount": 5} if path == "top-up" else {})
    await office.ask("POST", f"/limits/globex/{path}", body)
    entry = (await office.ask("GET", "/audit?limit=1")).json()["data"][0]
    assert entry["action"] == f"budget.{path.replace('-', '_')}"
    assert (entry["target"], entry["changes"]) == ("globex", changes)
    assert entry["actor"] == {"tenant_id": "acme", "key_id": await office.id_of("admin")}


async def test_who_adds_money_is_on_the_disk_with_the_time_before_it_is_added(office: Office) -> None:
    await office.served(cost=304)
    await office.ask("PATCH", "/tenants/globex", {"overrides": OVERRIDES | {"budget_month": 1000}})
    await office.ask("POST", "/limits/globex/top-up", {"amount": 5, "window": "month"})
    await office.ask("POST", "/limits/globex/reset", {"window": "day"})
    admin = Actor("acme", await office.id_of("admin"))
    found = [(one.action, one.window, one.amount, one.by, one.at) for one in office.spool.written]
    assert found == [
        ("top_up", "month", 5, admin, office.clock.now),
        ("reset", "day", 304, admin, office.clock.now),
    ]
    assert len({one.adjustment_id for one in office.spool.written}) == 2


@pytest.mark.parametrize("path", ["top-up", "reset"])
async def test_what_the_disk_does_not_take_is_503_and_has_never_been(office: Office, path: str) -> None:
    body = {"window": "day"} | ({"amount": 5} if path == "top-up" else {})
    await office.served(cost=304)
    office.spool.fault = OSError(28, "No space left on device")
    answer = await office.ask("POST", f"/limits/globex/{path}", body)
    assert told(answer) == (503, "spool_unavailable", None)
    assert words(answer) == "It could not be written to the gateway's disk: nothing was changed."
    assert "retry-after" not in answer.headers
    assert gauge(await office.ask("GET", "/limits/globex"), "budget_day")["remaining"] == 696
    (entry,) = (await office.ask("GET", "/audit?limit=1")).json()["data"]
    assert entry["action"] == "tenant.update", "what was done before it"


async def test_what_the_ledger_does_not_hear_is_503_and_says_that_it_holds(office: Office) -> None:
    office.spool.is_ledger_away = True
    answer = await office.ask("POST", "/limits/globex/top-up", {"amount": 5, "window": "day"})
    assert told(answer) == (503, "adjustment_pending", None)
    assert "do not repeat it" in words(answer)
    assert ("retry-after" in answer.headers, len(office.spool.written)) == (False, 1)


@pytest.mark.parametrize("path", ["top-up", "reset"])
async def test_a_window_without_a_budget_is_409(office: Office, path: str) -> None:
    body = {"window": "month"} | ({"amount": 5} if path == "top-up" else {})
    count = await office.store.change_count()
    answer = await office.ask("POST", f"/limits/globex/{path}", body)
    assert told(answer) == (409, "no_budget", None)
    assert await office.store.change_count() == count


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"window": "day"}, "amount"),
        ({"amount": 1}, "window"),
        ({"amount": 0, "window": "day"}, "amount"),
        ({"amount": -5, "window": "day"}, "amount"),
        ({"amount": 0.5, "window": "day"}, "amount"),
        ({"amount": 10**15 + 1, "window": "day"}, "amount"),
        ({"amount": 1, "window": "year"}, "window"),
        ({"amount": 1, "window": "day", "key_id": "k"}, "key_id"),
        ({"amount": 1, "window": "day", "note": "n"}, "note"),
    ],
)
async def test_a_bad_top_up_is_400_naming_the_field(office: Office, body: object, param: str) -> None:
    answer = await office.ask("POST", "/limits/globex/top-up", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
