"""How the cluster stands, by the operator's API and `headrace status`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster.autoscaling.view import ReplicaView
from tests.cluster.admin_desk import Desk
from tests.cluster.fakes import FakeGateway
from tests.cluster.scaling_world import make_status

PATH = "/admin/v1/status"
AS_TOLD = {"object": "status", **msgspec.json.decode(msgspec.json.encode(make_status()))}


async def test_the_status_is_shown_as_the_launcher_told_it(gateway: FakeGateway) -> None:
    for scope in ("admin", "admin:read"):
        answer = await gateway.call("GET", PATH, scope=scope)
        assert answer.status == 200
        assert answer.json() == AS_TOLD


async def test_a_launcher_that_tells_nothing_is_503(gateway: FakeGateway) -> None:
    gateway.services.status.told = None  # type: ignore[attr-defined]
    answer = await gateway.call("GET", PATH, scope="admin")
    assert (answer.status, answer.error["code"]) == (503, "store_unavailable")


@pytest.mark.parametrize(("scope", "status"), [(None, 401), ("inference", 403), ("metrics", 403)])
async def test_only_an_admin_scope_passes(gateway: FakeGateway, scope: str | None, status: int) -> None:
    assert (await gateway.call("GET", PATH, scope=scope)).status == status


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def test_people_read_who_serves_and_who_comes_and_why(desk: Desk) -> None:
    told = desk.run("status").stdout
    lines = [" ".join(line.split()) for line in told.splitlines()]
    for line in (
        "a serving - -",
        "b starting weights 12 s",
        "replicas 2 of 1 to 4: enough",
        "demand 900 tokens/s, of it 0 shed; 1000 expected; 50 tokens wait",
        "capacity 800 tokens/s, 800 a replica",
        "headroom 0.80 (wanted: 1.2)",
        "cold start 30.0 s: node 1.0, weights 29.0",
    ):
        assert line in lines
    assert "trouble" not in told


def test_what_is_unknown_is_said_and_trouble_is_shown(desk: Desk) -> None:
    desk.gateway.services.status.told = make_status(  # type: ignore[attr-defined]
        demand=None,
        headroom=make_status().headroom.__class__(wanted=2.0, actual=None),
        trouble="weights: out of memory",
        replicas=(ReplicaView(replica_id=None, state="provisioning", eta_s=53.4),),
    )
    told = " ".join(desk.run("status").stdout.split())
    assert "- provisioning - 53 s" in told
    assert "demand unknown: no gateway tells any" in told
    assert "headroom no demand (wanted: 2)" in told
    assert "trouble weights: out of memory" in told


def test_json_is_the_api_s_own_object(desk: Desk) -> None:
    assert desk.told("status") == AS_TOLD


def test_watching_shows_it_again_until_it_is_stopped(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("cluster.admin_cli.status_command.time.sleep", pause)
    result = desk.run("status", "--watch", "--json")
    assert (result.exit_code, len(result.stdout.splitlines()), pauses) == (130, 3, [2.0] * 3)
