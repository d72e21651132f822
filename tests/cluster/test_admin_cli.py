"""The commands for operators, each against the API's real application."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster import admin_cli
from tenants.ledger.settlement import Settlement
from tests.cluster.admin_desk import Desk
from tests.cluster.fakes import WALL_TIME


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def words(output: str) -> list[list[str]]:
    """The words of each line that is no rule."""
    return [line.split() for line in output.splitlines() if line.strip(" ─")]


def test_a_tier_s_life(desk: Desk) -> None:
    made = desk.told("tier", "create", "gold", "weight=8", "budget_day=250_000_000", "models=a,b")
    assert (made["name"], made["terms"]["weight"], made["terms"]["models"]) == ("gold", 8, ["a", "b"])
    changed = desk.told("tier", "set", "gold", "weight=default", "budget_day=none", "requests_per_min=5")
    assert (changed["terms"]["weight"], changed["terms"]["budget_day"]) == (1, None)
    assert changed["terms"]["models"] == ["a", "b"]
    assert desk.told("tier", "get", "gold") == changed
    assert "gold" in [tier["name"] for tier in desk.told("tier", "list")["data"]]
    assert desk.told("tier", "delete", "gold") == {"object": "deleted", "kind": "tier", "id": "gold"}
    assert desk.fails("tier", "get", "gold") == (1, "headrace tier get: There is no tier gold.\n")


def test_a_tenant_s_life(desk: Desk) -> None:
    made = desk.told("tenant", "create", "beta", "tier=free", "name=Beta & Co", "budget_day=5", "burst_s=9")
    assert (made["tier"], made["name"], made["overrides"]) == (
        "free",
        "Beta & Co",
        {"budget_day": 5, "burst_s": 9},
    )
    changed = desk.told(
        "tenant", "set", "beta", "budget_day=none", "burst_s=default", "weight=3", "tier=paid"
    )
    assert (changed["tier"], changed["name"]) == ("paid", "Beta & Co")
    assert changed["overrides"] == {"budget_day": None, "weight": 3}
    assert desk.told("tenant", "freeze", "beta")["disabled"] is True
    assert desk.told("tenant", "unfreeze", "beta")["disabled"] is False
    assert [tenant["tenant_id"] for tenant in desk.told("tenant", "list")["data"]] == ["acme", "beta"]
    desk.told("tenant", "delete", "beta")
    assert desk.fails("tenant", "get", "beta") == (1, "headrace tenant get: There is no tenant beta.\n")


def test_only_what_is_said_is_sent(desk: Desk) -> None:
    desk.told("tenant", "create", "beta", "tier=free", "weight=3")
    assert desk.told("tenant", "set", "beta", "name=B")["overrides"] == {"weight": 3}


def test_an_operator_cannot_freeze_or_end_what_it_stands_on(desk: Desk) -> None:
    assert desk.run("tenant", "freeze", "acme").exit_code == 1
    assert desk.run("tenant", "delete", "acme").exit_code == 1
    own = [
        key["key_id"]
        for key in desk.told("key", "list")["data"]
        if key["hint"] == desk.gateway.keys["admin"][-4:]
    ]
    assert [desk.run("key", "delete", key_id).exit_code for key_id in own] == [1]


def test_a_key_s_life(desk: Desk) -> None:
    limits = ("--limit", "requests_per_min=60", "--limit", "burst_s=9")
    options = (
        "--name",
        "ci",
        "--expires-in",
        "30d",
        "--address",
        "10.1.2.3/8",
        "--scope",
        "metrics",
        *limits,
    )
    made = desk.told("key", "create", "--tenant", "acme", *options)
    key_id = made["key_id"]
    assert (made["name"], made["scopes"], made["addresses"]) == ("ci", ["metrics"], ["10.0.0.0/8"])
    assert made["expires_at"] == WALL_TIME + 30 * 86_400
    assert (made["limits"]["requests_per_min"], made["limits"]["burst_s"]) == (60, 9)
    changed = desk.told(
        "key", "set", key_id, "--limit", "burst_s=default", "--address", "none", "--expires-in", "never"
    )
    assert (changed["addresses"], changed["expires_at"]) == ([], None)
    assert (changed["limits"]["requests_per_min"], changed["limits"]["burst_s"]) == (60, 60)
    assert desk.told("key", "get", key_id) == changed
    assert key_id in [key["key_id"] for key in desk.told("key", "list", "--tenant", "acme")["data"]]
    desk.told("key", "delete", key_id)
    assert desk.run("key", "get", key_id).exit_code == 1


def test_a_key_set_without_anything_is_a_wrong_command_line(desk: Desk) -> None:
    assert desk.run("key", "set", "key_0123456789abcdef").exit_code == 2


def test_stdout_has_the_new_key_and_nothing_else_and_the_warning_is_on_stderr(desk: Desk) -> None:
    result = desk.run("key", "create", "--tenant", "acme")
    key = result.stdout.removesuffix("\n")
    assert key.startswith("hr-")
    assert key not in result.stderr
    assert "its key is shown this once; keep it now." in result.stderr
    key_id = result.stderr.split()[0]
    assert key not in desk.run("key", "get", key_id).output
    assert key not in desk.run("key", "list").output
    assert key not in desk.run("audit").output


def test_a_rotated_key_leaves_the_old_one_for_the_overlap(desk: Desk) -> None:
    old = desk.told("key", "create", "--tenant", "acme", "--name", "ci", "--limit", "requests_per_min=60")
    new = desk.told("key", "rotate", old["key_id"], "--overlap", "2h")
    assert new["key_id"] != old["key_id"]
    assert new["key"].startswith("hr-")
    assert (new["name"], new["limits"]) == (old["name"], old["limits"])
    assert desk.told("key", "get", old["key_id"])["expires_at"] == WALL_TIME + 7200
    status, said = desk.fails("key", "rotate", old["key_id"])
    assert status == 1
    assert new["key_id"] in said
    assert desk.told("key", "get", old["key_id"])["expires_at"] == WALL_TIME + 7200


def test_a_rotation_says_when_both_keys_end(desk: Desk) -> None:
    old = desk.told("key", "create", "--tenant", "acme", "--expires-in", "1d")
    result = desk.run("key", "rotate", old["key_id"], "--overlap", "2h")
    assert result.stdout.startswith("hr-")
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.splitlines()[-1] == (
        f"The new key ends: 2023-11-15 22:13:20Z. The old one, {old['key_id']}, ends: 2023-11-15 00:13:20Z."
    )


def test_the_own_key_is_not_ended_from_here(desk: Desk) -> None:
    keys = desk.told("key", "list")["data"]
    (own,) = [key["key_id"] for key in keys if key["hint"] == desk.gateway.keys["admin"][-4:]]
    assert desk.fails("key", "set", own, "--expires-in", "1s")[0] == 1
    assert desk.fails("key", "set", own, "--address", "10.0.0.0/8")[0] == 1
    assert desk.told("key", "get", own) in keys


def test_a_key_without_an_end_never_expires_in_the_list_and_alone(desk: Desk) -> None:
    key_id = desk.told("key", "create", "--tenant", "acme", "--name", "ci")["key_id"]
    assert ["expires_at", "never"] in words(desk.run("key", "get", key_id).stdout)
    heading, *lines = words(desk.run("key", "list").stdout)
    assert heading == ["key", "tenant", "name", "scopes", "hint", "expires", "limits", "from"]
    assert all("never" in line for line in lines)


def test_a_tier_list_has_prices(desk: Desk) -> None:
    desk.told("tier", "create", "gold", "input_price=150000", "output_price=600000")
    (gold,) = [line for line in words(desk.run("tier", "list").stdout) if line[0] == "gold"]
    assert gold[-7:] == ["150000", "(0.15)", "0", "(0)", "600000", "(0.6)", "refuse"]


def test_money_is_added_to_a_window_and_a_reset_makes_it_whole(desk: Desk) -> None:
    desk.told("tenant", "create", "beta", "tier=free", "budget_day=2500000")

    def day(*options: str) -> tuple[int, int]:
        limits = desk.told("limits", "beta", *options)["limits"]
        return next((it["limit"], it["remaining"]) for it in limits if it["kind"] == "budget_day")

    assert day() == (2_500_000, 2_500_000)
    assert day("--top-up", "1000", "--window", "day") == (2_501_000, 2_501_000)
    assert day("--top-up", "1000", "--window", "day") == (2_502_000, 2_502_000)
    settled(desk, "beta", 1, cost=2_400_000)
    assert day() == (2_502_000, 102_000)
    for _ in range(2):
        assert day("--reset", "--window", "day") == (2_502_000, 2_502_000)
    assert desk.fails("limits", "beta", "--top-up", "5", "--window", "month")[0] == 1
    shown = words(desk.run("limits", "beta").stdout)
    assert ["budget_day", "2500000", "(2.5)"] in shown


@pytest.mark.parametrize(
    "options",
    [("--top-up", "5"), ("--reset",), ("--window", "day"), ("--top-up", "5", "--reset", "--window", "day")],
)
def test_top_up_and_reset_need_their_window_and_exclude_each_other(
    desk: Desk, options: tuple[str, ...]
) -> None:
    result = desk.run("limits", "acme", *options)
    assert result.exit_code == 2
    assert desk.transport.asked == []


def settled(desk: Desk, tenant_id: str, number: int, cost: int) -> None:
    settlement = Settlement(
        request_id=f"r{number}",
        tenant_id=tenant_id,
        key_id="key_0000000000000001",
        model="tiny",
        gateway_id="g",
        started_at=WALL_TIME,
        ended_at=WALL_TIME,
        outcome="finished",
        n=1,
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=3,
        cost=cost,
    )
    desk.transport.runner.run(desk.gateway.services.ledger.settle([settlement]))


def test_usage_is_told_by_what_is_asked_for(desk: Desk) -> None:
    desk.told("tenant", "create", "beta", "tier=free")
    settled(desk, "acme", 1, 1_500_000)
    settled(desk, "acme", 2, 500_000)
    settled(desk, "beta", 3, 7)
    told = desk.told("usage", "--by", "model,key")
    assert [(row["tenant_id"], row["requests"], row["cost"]) for row in told["data"]] == [
        ("acme", 2, 2_000_000),
        ("beta", 1, 7),
    ]
    assert {(row["day"], row["model"], row["key_id"]) for row in told["data"]} == {
        (None, "tiny", "key_0000000000000001")
    }
    assert len(desk.told("usage", "--tenant", "beta")["data"]) == 1
    rows = list(csv.DictReader(io.StringIO(desk.run("usage", "--by", "model", "--csv").stdout)))
    assert [(row["tenant_id"], row["model"], row["prompt_tokens"], row["cost"]) for row in rows] == [
        ("acme", "tiny", "20", "2000000"),
        ("beta", "tiny", "10", "7"),
    ]
    assert "day" not in rows[0]
    lines = words(desk.run("usage", "--by", "model").stdout)
    assert lines[-1] == ["in", "all", "3", "30", "12", "9", "2000007", "(2.000007)"]


def test_usage_of_many_tenants_is_read_page_by_page(desk: Desk) -> None:
    for number in range(101):
        desk.told("tenant", "create", f"t{number}", "tier=free")
        settled(desk, f"t{number}", number, 1)
    assert len(desk.told("usage")["data"]) == 101


def test_usage_of_all_says_on_stderr_that_deleted_tenants_are_not_in_it(desk: Desk) -> None:
    desk.told("tenant", "create", "beta", "tier=free")
    settled(desk, "beta", 1, 7)
    desk.told("tenant", "delete", "beta")
    result = desk.run("usage", "--csv")
    assert "beta" not in result.stdout
    assert result.stderr.startswith("Deleted tenants are not in it: --tenant ID tells what one used")
    assert desk.told("usage")["omits_deleted"] is True
    one = desk.run("usage", "--tenant", "beta", "--csv")
    assert "7" in one.stdout
    assert one.stderr == ""


@pytest.mark.parametrize(
    ("cost", "said"), [(0, ""), (79, ""), (80, "nearly used up"), (100, "used up")], ids=str
)
def test_a_limit_that_is_nearly_or_wholly_used_up_is_marked(desk: Desk, cost: int, said: str) -> None:
    desk.told("tenant", "create", "beta", "tier=unlimited", "budget_day=100")
    settled(desk, "beta", 1, cost)
    (line,) = [
        line for line in words(desk.run("limits", "beta").stdout) if line[:2] == ["budget_day", "100"]
    ][1:]
    assert " ".join(line).endswith(f" s {said}".rstrip())


def test_no_usage_is_a_line(desk: Desk) -> None:
    result = desk.run("usage", "--from", "2026-11-01", "--to", "2026-11-02")
    assert result.stdout == "From 2026-11-01 to 2026-11-02, in UTC: nothing was used\n"


def test_the_server_says_which_day_is_none(desk: Desk) -> None:
    status, said = desk.fails("usage", "--from", "yesterday")
    assert status == 1
    assert said.startswith("headrace usage: ")
    assert "from" in said


def test_the_audit_says_who_changed_what_the_latest_first(desk: Desk) -> None:
    desk.told("tenant", "create", "beta", "tier=free")
    desk.told("tenant", "set", "beta", "weight=3")
    told = desk.told("audit", "--limit", "2")
    assert [(entry["action"], entry["target"]) for entry in told["data"]] == [
        ("tenant.update", "beta"),
        ("tenant.create", "beta"),
    ]
    shown = desk.run("audit", "--limit", "1").stdout
    assert "acme/key_" in shown
    assert "overrides: - → weight=3" in shown
    assert f"There is more: --before {told['data'][0]['entry_id']}" in shown
    before = desk.told("audit", "--before", told["data"][0]["entry_id"], "--limit", "1")
    assert before["data"] == told["data"][1:]


@pytest.mark.parametrize("group", ["tier", "tenant", "key"])
def test_a_list_is_a_table_with_a_line_each(desk: Desk, group: str) -> None:
    told = desk.told(group, "list")["data"]
    lines = words(desk.run(group, "list").stdout)
    assert len(lines) == 1 + len(told)
    ident = {"tier": "name", "tenant": "tenant_id", "key": "key_id"}[group]
    assert [line[0] for line in lines[1:]] == [row[ident] for row in told]


def test_one_object_is_shown_whole(desk: Desk) -> None:
    desk.told("tenant", "create", "beta", "tier=free", "budget_day=1500000")
    lines = words(desk.run("tenant", "get", "beta").stdout)
    assert ["tier", "free"] in lines
    assert ["budget_day", "1500000", "(1.5)"] in lines
    assert ["state", "active"] in lines
    assert ["requests_per_min", "60"] in words(desk.run("tier", "get", "free").stdout)


def test_a_change_that_was_overtaken_is_made_again_and_loses_nothing(desk: Desk) -> None:
    desk.told("tenant", "create", "beta", "tier=free", "weight=3")
    desk.overtaken("PATCH", "/tenants/beta", "/tenants/beta", {"overrides": {"weight": 5}})
    assert desk.told("tenant", "set", "beta", "burst_s=9")["overrides"] == {"weight": 5, "burst_s": 9}


def test_nobody_there_exits_2_and_shows_no_key(desk: Desk) -> None:
    desk.meets("GET", "/tenants", httpx.ConnectError("no"))
    status, said = desk.fails("tenant", "list")
    assert (status, said) == (2, "headrace tenant list: nothing answers at http://desk (ConnectError)\n")


def test_a_key_that_may_only_look_is_told_so(desk: Desk) -> None:
    desk.key_file.write_text(desk.gateway.keys["admin:read"])
    assert desk.run("tenant", "list").exit_code == 0
    status, said = desk.fails("tenant", "freeze", "acme")
    assert status == 1
    assert "scope admin" in said


@pytest.mark.parametrize("ident", ["", "..", "a/b", "a?b", "a b", "ä"])
def test_an_id_that_would_lead_elsewhere_is_refused_here(desk: Desk, ident: str) -> None:
    result = desk.run("tenant", "delete", ident)
    assert result.exit_code == 2
    assert "an id has only letters, digits, _ and -" in " ".join(result.stderr.split())
    assert desk.transport.asked == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenant", "create", "beta", "name=B"), "a tenant needs tier=TIER"),
        (("tenant", "set", "beta", "requests_per_mni=5"), "there is no field requests_per_mni"),
        (("tier", "set", "free", "weight"), "'weight' is not field=value"),
        (("key", "create", "--tenant", "acme", "--expires-in", "30"), "'30' is no length of time"),
        (("key", "create", "--tenant", "acme", "--limit", "weight=1"), "there is no field weight"),
        (("limits", "acme", "--top-up", "2.5", "--window", "day"), "'2.5' is no number of micro-units"),
        (("limits", "acme", "--top-up", "0", "--window", "day"), "give 1500000 for 1.5 units"),
        (("tier", "set", "free", "offline=maybe"), "there is no maybe; there are refuse, serve"),
        (("tenant", "list", "--url", "127.0.0.1:8572"), "give it with http:// or https://"),
        (("usage", "--tenant", "beta", "export"), "--tenant before export says nothing to it"),
        (("usage", "--json", "export"), "--json before export says nothing to it"),
    ],
)
def test_a_wrong_command_line_is_named_and_asks_nobody(
    desk: Desk, arguments: tuple[str, ...], said: str
) -> None:
    result = desk.run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert desk.transport.asked == []


def test_a_key_file_that_is_not_there_is_named(desk: Desk) -> None:
    result = desk.run("tenant", "list", "--key-file", "none.key")
    assert result.exit_code == 2
    assert "--key-file: none.key cannot be read" in " ".join(result.stderr.split())


def test_json_is_the_last_line_and_one_object(desk: Desk) -> None:
    result = desk.run("tenant", "list", "--json")
    assert json.loads(result.stdout.splitlines()[-1])["object"] == "list"


def test_no_command_needs_what_is_slow_to_import() -> None:
    folder = Path(admin_cli.__file__).parent
    modules = [f"cluster.admin_cli.{path.stem}" for path in sorted(folder.glob("*.py"))]
    program = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    imported = {name.partition(".")[0] for name in run.stdout.split()}
    assert imported & {"torch", "ray", "pydantic", "fastapi", "redis", "numpy"} == set()
    assert {"httpx", "yaml"} <= imported
