"""`headrace apply` against the API's real application: plan, ask, act, and what happens when a step fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.admin_desk import Desk

FILE = """
tiers:
  gold: {weight: 8, budget_day: 250000000}
tenants:
  beta:
    name: Beta
    tier: gold
    overrides: {requests_per_min: 600}
    keys:
      app: {}
      ci: {scopes: [metrics], addresses: [10.1.2.3/8], limits: {max_concurrency: 4}, expires_in: 90d}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def refused(status: int, message: str) -> httpx.Response:
    return httpx.Response(
        status, json={"error": {"message": message, "type": "t", "param": None, "code": "c"}}
    )


def apply(desk: Desk, text: str, *options: str) -> Any:
    return desk.told("apply", "-f", desk.write(text), "--yes", *options)


def steps(told: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [(step["action"], step["kind"], step["name"], step["state"]) for step in told["actions"]]


def test_a_file_comes_true_and_a_second_time_there_is_nothing_to_do(desk: Desk) -> None:
    told = apply(desk, FILE)
    assert told["state"] == "done"
    assert steps(told) == [
        ("create", "tier", "gold", "done"),
        ("create", "tenant", "beta", "done"),
        ("create", "key", "beta/app", "done"),
        ("create", "key", "beta/ci", "done"),
    ]
    assert desk.told("tenant", "get", "beta")["overrides"] == {"requests_per_min": 600}
    keys = {key["name"]: key for key in desk.told("key", "list", "--tenant", "beta")["data"]}
    assert (keys["ci"]["scopes"], keys["ci"]["addresses"]) == (["metrics"], ["10.0.0.0/8"])
    assert (keys["ci"]["limits"]["max_concurrency"], keys["app"]["limits"]) == (4, None)
    again = apply(desk, FILE)
    assert (again["state"], again["actions"], again["num_unchanged"]) == ("nothing_to_do", [], 4)
    shown = desk.run("apply", "-f", desk.write(FILE))
    assert (shown.exit_code, shown.stdout) == (0, "Nothing to do: 4 unchanged.\n")


def test_the_plan_is_told_field_by_field_and_a_dry_run_does_nothing(desk: Desk) -> None:
    apply(desk, FILE)
    changed = FILE.replace("weight: 8", "weight: 4").replace("600}", "none_yet}").replace("none_yet", "null")
    asked_before = len(desk.transport.asked)
    result = desk.run("apply", "-f", desk.write(changed), "--dry-run")
    assert result.exit_code == 0
    assert result.stdout == (
        "~ update tier gold\n"
        "    weight: 8 → 4\n"
        "~ update tenant beta\n"
        "    overrides.requests_per_min: 600 → none\n"
        "2 to update, 2 unchanged.\n"
    )
    assert {method for method, _ in desk.transport.asked[asked_before:]} == {"GET"}
    told = desk.told("apply", "-f", desk.write(changed), "--dry-run")
    assert told["state"] == "planned"
    assert told["actions"][0] == {
        "action": "update",
        "kind": "tier",
        "name": "gold",
        "id": "gold",
        "changes": {"weight": {"before": 8, "after": 4}},
        "state": "planned",
    }


def test_money_of_a_plan_is_shown_in_both_units(desk: Desk) -> None:
    shown = desk.run("apply", "-f", desk.write(FILE), "--dry-run").stdout
    assert "    budget_day: 250000000 (250)\n" in shown


def test_new_keys_are_shown_once_on_stdout(desk: Desk) -> None:
    result = desk.run("apply", "-f", desk.write(FILE), "--yes")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("key of ")]
    assert [line.split(": hr-")[0] for line in lines] == ["key of beta/app", "key of beta/ci"]
    assert "New keys are shown this once: keep them now." in result.stderr
    assert "hr-" not in result.stderr
    assert "hr-" not in desk.run("apply", "-f", desk.write(FILE), "--yes").output


def test_in_json_a_new_key_stands_with_its_step(desk: Desk) -> None:
    made = [step for step in apply(desk, FILE)["actions"] if step["kind"] == "key"]
    assert [step["key"][:3] for step in made] == ["hr-", "hr-"]
    ids = {key["key_id"] for key in desk.told("key", "list", "--tenant", "beta")["data"]}
    assert {step["id"] for step in made} == ids


def test_new_keys_go_to_a_file_of_their_own_that_only_its_owner_reads(desk: Desk) -> None:
    out = desk.folder / "new.jsonl"
    result = desk.run("apply", "-f", desk.write(FILE), "--yes", "--keys-out", str(out), "--json")
    assert "hr-" not in result.output
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(key["tenant_id"], key["name"], key["key"][:3]) for key in kept] == [
        ("beta", "app", "hr-"),
        ("beta", "ci", "hr-"),
    ]
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_file_of_keys_is_never_written_over_and_nothing_is_done(desk: Desk) -> None:
    out = desk.folder / "old.jsonl"
    out.write_text("secrets of another run")
    result = desk.run("apply", "-f", desk.write(FILE), "--yes", "--keys-out", str(out))
    assert result.exit_code == 2
    assert "is there already" in result.stderr
    assert out.read_text() == "secrets of another run"
    assert {method for method, _ in desk.transport.asked} == {"GET"}


def test_a_file_of_keys_that_got_none_does_not_stay(desk: Desk) -> None:
    out = desk.folder / "new.jsonl"
    desk.meets("POST", "/tenants", refused(409, "No more tenants."))
    assert desk.run("apply", "-f", desk.write(FILE), "--yes", "--keys-out", str(out)).exit_code == 1
    assert not out.exists()


def test_a_file_of_keys_is_made_only_for_keys(desk: Desk) -> None:
    apply(desk, FILE)
    out = desk.folder / "new.jsonl"
    apply(desk, FILE.replace("weight: 8", "weight: 4"), "--keys-out", str(out))
    assert not out.exists()


def test_without_yes_it_asks_and_no_terminal_is_no_yes(desk: Desk) -> None:
    result = desk.run("apply", "-f", desk.write(FILE), typed="y\n")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "headrace apply: nothing was done: there is no terminal to ask on; give --yes\n"
    )
    assert {method for method, _ in desk.transport.asked} == {"GET"}


@pytest.mark.parametrize(("typed", "status", "methods"), [("y\n", 0, {"GET", "POST"}), ("n\n", 2, {"GET"})])
def test_on_a_terminal_the_answer_counts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, status: int, methods: set[str]
) -> None:
    monkeypatch.setattr("cluster.admin_cli.apply_command.is_terminal", lambda: True)
    result = desk.run("apply", "-f", desk.write(FILE), typed=typed)
    assert result.exit_code == status
    assert {method for method, _ in desk.transport.asked} == methods


def test_prune_deletes_what_is_not_named_and_spares_its_caller(desk: Desk) -> None:
    apply(desk, FILE)
    desk.told("tenant", "create", "gone", "tier=gold")
    desk.told("tier", "create", "old", "weight=2")
    smaller = "tiers: {}\ntenants:\n  beta: {tier: free, name: Beta, keys: {app: {}}}\n"
    assert apply(desk, smaller)["state"] == "done"
    assert [kind for kind, *_ in steps(apply(desk, smaller))] == []
    told = apply(desk, smaller, "--prune")
    assert steps(told) == [
        ("delete", "key", "beta/ci", "done"),
        ("delete", "tenant", "gone", "done"),
        ("delete", "tier", "gold", "done"),
        ("delete", "tier", "old", "done"),
    ]
    assert [(kept["kind"], kept["name"]) for kept in told["kept"]] == [
        ("tenant", "acme"),
        ("tier", "free"),
        ("tier", "paid"),
        ("tier", "unlimited"),
    ]
    assert apply(desk, smaller, "--prune")["state"] == "nothing_to_do"


def test_the_caller_s_own_key_outlives_a_prune_of_its_tenant_s_keys(desk: Desk) -> None:
    told = apply(desk, "tenants: {acme: {tier: paid, name: Acme, keys: {}}}", "--prune")
    assert len(told["actions"]) == len(desk.gateway.keys) - 1
    assert [kept["why"] for kept in told["kept"]] == ["it is the caller's own"]
    assert len(desk.told("key", "list")["data"]) == 1


def test_a_step_that_is_refused_ends_it_and_says_what_was_done(desk: Desk) -> None:
    desk.meets("POST", "/tenants", refused(409, "No more tenants."))
    result = desk.run("apply", "-f", desk.write(FILE), "--yes")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "done: create tier gold",
        "failed: create tenant beta",
        "not done: create key beta/app",
        "not done: create key beta/ci",
        "headrace apply: create tenant beta: No more tenants.",
    ]
    assert apply(desk, FILE)["num_unchanged"] == 1


def test_a_failure_in_json_is_told_in_the_object_with_the_keys_that_were_made(desk: Desk) -> None:
    desk.meets("POST", "/keys", None, httpx.ReadTimeout("no"))
    result = desk.run("apply", "-f", desk.write(FILE), "--yes", "--json")
    assert result.exit_code == 2
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["state"] == "failed"
    assert [state for *_, state in steps(told)] == ["done", "done", "done", "in_doubt"]
    assert told["actions"][2]["key"].startswith("hr-")
    assert told["error"] == "create key beta/ci: nothing answers at http://desk (ReadTimeout)"


def test_an_interrupt_in_the_middle_says_what_was_done_and_exits_130(desk: Desk) -> None:
    desk.meets("POST", "/tenants", KeyboardInterrupt())
    result = desk.run("apply", "-f", desk.write(FILE), "--yes")
    assert result.exit_code == 130
    assert "done: create tier gold\nin doubt: create tenant beta\n" in result.stderr


@pytest.mark.parametrize(
    ("path", "other", "plan"),
    [
        ("/tiers/gold", {"terms": {"burst_s": 9}}, "update tier gold"),
        ("/tenants/beta", {"name": "Theirs"}, "update tenant beta"),
    ],
)
def test_what_was_changed_since_the_plan_is_not_overwritten(
    desk: Desk, path: str, other: dict[str, Any], plan: str
) -> None:
    apply(desk, FILE)
    changed = desk.write(FILE.replace("weight: 8", "weight: 4").replace("600", "700"))
    desk.overtaken("PATCH", path, path, other)
    result = desk.run("apply", "-f", changed, "--yes")
    assert result.exit_code == 1
    assert f"failed: {plan}\n" in result.stderr
    assert result.stderr.endswith("Run it again for a new plan.\n")
    assert desk.told("apply", "-f", changed, "--yes")["state"] == "done"


def test_what_was_changed_since_the_plan_is_not_deleted(desk: Desk) -> None:
    desk.told("tenant", "create", "gone", "tier=free")
    desk.overtaken("DELETE", "/tenants/gone", "/tenants/gone", {"name": "Needed"})
    result = desk.run("apply", "-f", desk.write("tenants: {}"), "--prune", "--yes")
    assert result.exit_code == 1
    assert desk.told("tenant", "get", "gone")["name"] == "Needed"


def test_a_changed_life_of_a_key_that_is_there_is_noted_and_not_done(desk: Desk) -> None:
    (made,) = [step for step in apply(desk, FILE)["actions"] if step["name"] == "beta/ci"]
    assert apply(desk, FILE)["notes"] == []
    changed = FILE.replace("90d", "10d")
    told = apply(desk, changed)
    assert told["state"] == "nothing_to_do"
    (note,) = told["notes"]
    assert (note["kind"], note["name"], note["id"]) == ("key", "beta/ci", made["id"])
    shown = desk.run("apply", "-f", desk.write(changed), "--dry-run").stdout
    assert shown.startswith(f"! key beta/ci ({made['id']}): expires_in counts when a key is made")
    desk.told("key", "rotate", made["id"])
    (note,) = apply(desk, changed)["notes"]
    assert note["id"] != made["id"]  # the old one has but its overlap left, whatever the file says


def test_a_life_is_noted_of_a_key_that_was_to_live_for_ever(desk: Desk) -> None:
    apply(desk, FILE)
    told = apply(desk, FILE.replace("app: {}", "app: {expires_in: 90d}"))
    assert [note["name"] for note in told["notes"]] == ["beta/app"]
    assert apply(desk, FILE.replace(", expires_in: 90d", ""))["notes"] == []


def test_a_frozen_tenant_stays_frozen(desk: Desk) -> None:
    apply(desk, FILE)
    desk.told("tenant", "freeze", "beta")
    assert apply(desk, FILE)["state"] == "nothing_to_do"
    assert desk.told("tenant", "get", "beta")["disabled"] is True


def test_a_tenant_can_be_made_frozen(desk: Desk) -> None:
    apply(desk, "tenants: {cold: {tier: free, disabled: true}}")
    assert desk.told("tenant", "get", "cold")["disabled"] is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants: {beta: {tier: none}}", "tenants.beta.tier: there is no tier none"),
        (
            "tenants: {acme: {tier: free, disabled: true}}",
            "tenants.acme.disabled: this is the caller's own tenant",
        ),
        ("tenants: {beta: {teir: free}}", ":1: tenants.beta.teir: there is no such field"),
    ],
)
def test_a_file_that_cannot_come_true_is_refused_and_nothing_is_done(
    desk: Desk, text: str, said: str
) -> None:
    status, told = desk.fails("apply", "-f", desk.write(text), "--yes")
    assert status == 2
    assert said in told
    assert "tenants.yaml" in told
    assert {method for method, _ in desk.transport.asked} <= {"GET"}


def test_a_file_that_is_too_large_is_refused_by_flag_and_limit(desk: Desk) -> None:
    status, said = desk.fails("apply", "-f", "/dev/zero", "--dry-run")
    told = "headrace apply: --file: /dev/zero is too large: it may have 1048576 bytes\n"
    assert (status, said) == (2, told)


def test_a_file_that_is_not_there_is_named_before_anybody_is_asked(desk: Desk) -> None:
    status, said = desk.fails("apply", "-f", "none.yaml")
    assert (status, said) == (
        2,
        "headrace apply: --file: none.yaml cannot be read: No such file or directory\n",
    )
    assert desk.transport.asked == []


def test_the_example_in_the_repository_comes_true(desk: Desk) -> None:
    example = Path(__file__).resolve().parents[2] / "deploy" / "tenants.yaml"
    assert desk.told("apply", "-f", str(example), "--yes")["state"] == "done"
    assert desk.told("apply", "-f", str(example), "--yes")["state"] == "nothing_to_do"
