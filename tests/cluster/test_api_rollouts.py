"""The operator's API of rolling updates: asked, shown, refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cluster.golden import GoldenPrompt
from tests.cluster.fakes import WALL_TIME, Call, FakeGateway

PATH = "/admin/v1/rollouts"


async def ask(gateway: FakeGateway, body: Any, **request: Any) -> Call:
    return await gateway.post(PATH, body, **{"scope": "admin"} | request)


async def test_a_rollout_is_asked_for_shown_and_listed(gateway: FakeGateway) -> None:
    golden = [{"prompt": "secret", "text": "answer"}, {"prompt_token_ids": [1], "token_ids": [2]}]
    made = await ask(gateway, {"model": "tape:b", "revision": "0123ab", "golden": golden})
    shown = made.json()
    assert made.status == 202
    assert re.fullmatch(r"ro-[0-9a-f]{8}", shown["rollout_id"])
    assert shown == {
        "object": "rollout",
        "rollout_id": shown["rollout_id"],
        "created_at": WALL_TIME,
        "model": "tape:b",
        "revision": "0123ab",
        "num_golden": 2,
        "state": "pending",
        "num_replicas": 0,
        "num_updated": 0,
        "steps": [],
        "error": None,
        "remedy": None,
        "ended_at": None,
    }
    assert (await gateway.call("GET", f"{PATH}/{shown['rollout_id']}", scope="admin")).json() == shown
    listed = (await gateway.call("GET", PATH, scope="admin")).json()
    assert listed == {"object": "list", "data": [shown]}
    given = gateway.services.rollouts.golden  # type: ignore[attr-defined]
    assert given == [GoldenPrompt.model_validate(prompt) for prompt in golden]


async def test_a_second_one_is_refused_while_the_first_is_not_over(gateway: FakeGateway) -> None:
    first = (await ask(gateway, {"model": "tape:"})).json()["rollout_id"]
    second = await ask(gateway, {"model": "tape:"})
    assert (second.status, second.error["message"]) == (409, f"Rollout {first} is not over yet.")


async def test_one_that_is_not_there_is_404(gateway: FakeGateway) -> None:
    answer = await gateway.call("GET", f"{PATH}/ro-1", scope="admin")
    assert (answer.status, answer.error["message"]) == (404, "There is no rollout ro-1.")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"golden": []}, None),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"revision": "main"}, "revision"),
        ({"revision": "ABCD"}, "revision"),
        ({"revision": "abc"}, "revision"),
        ({"model": "m", "golden": [{"text": "x"}]}, "golden.0"),
        ({"model": "m", "golden": [{"prompt": "x"}, {"prompt": "y", "txt": "z"}]}, "golden.1.txt"),
        ({"model": "m", "golden": [{"prompt": "x"}] * 65}, "golden"),
        ({"model": "m", "replicas": 3}, "replicas"),
    ],
)
async def test_a_body_that_does_not_fit_is_400_and_names_the_field(
    gateway: FakeGateway, body: dict[str, Any], param: str | None
) -> None:
    answer = await ask(gateway, body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert gateway.services.rollouts.asked == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(("scope", "status"), [(None, 401), ("inference", 403), ("metrics", 403)])
@pytest.mark.parametrize(("method", "path"), [("POST", PATH), ("GET", PATH), ("GET", f"{PATH}/ro-1")])
async def test_only_a_key_of_scope_admin_passes(
    gateway: FakeGateway, method: str, path: str, scope: str | None, status: int
) -> None:
    answer = await gateway.call(method, path, scope=scope, body={"model": "tape:"})
    assert answer.status == status
    assert gateway.services.rollouts.asked == []  # type: ignore[attr-defined]
