"""`headrace ledger verify` against a server that plays the API and the metrics ports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry, Counter, generate_latest

import headrace
from cluster.engine_metrics import EngineMetrics
from cluster.ledger_cli import verify_command
from cluster.ledger_cli.evidence import GatewayReading
from cluster.ledger_cli.scrape import engine_reading, gateway_reading
from cluster.telemetry import Telemetry
from engine.counters import EngineCounters
from tenants.ledger.usage import Sums, sums_of
from tests.builders_spool import a_settlement, spooled

DAY = "2026-11-30"
SETTLED = [a_settlement(1), a_settlement(2, outcome="left"), a_settlement(3, tenant_id="deleted")]


def metrics_page(*settlements: Any) -> str:
    """As a gateway's telemetry has them."""
    telemetry = Telemetry(dict)
    for one in settlements:
        telemetry.tenants.count_settled(one)
    registry = telemetry.registry
    tokens = {"prompt": "prompt_tokens", "cached_prompt": "cached_tokens", "generation": "completion_tokens"}
    page = generate_latest(registry).decode()
    for name, figure in tokens.items():
        own = CollectorRegistry()
        counter = Counter(f"headrace_{name}_tokens", "x", ["tenant"], registry=own)
        for one in settlements:
            counter.labels(one.tenant_id).inc(getattr(one, figure))
        page += generate_latest(own).decode()
    return page


def engine_page(num_tokens: int) -> str:
    metrics = EngineMetrics(lambda: EngineCounters(0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0))
    metrics._tokens.inc(num_tokens)
    return generate_latest(metrics.registry).decode()


class Cluster:
    """Plays everything that answers HTTP."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.usage = {one.tenant_id: Sums() for one in SETTLED}
        for one in SETTLED:
            self.usage[one.tenant_id] = self.usage[one.tenant_id].plus(sums_of(one))
        self.pages = {"gateway:1": metrics_page(*SETTLED), "replica:1": engine_page(21)}
        self.asked = 0
        run = state_dir / "run"
        run.mkdir()
        targets = [("gateway", "g1", "gateway:1"), ("replica", "r1", "replica:1")]
        self.write_targets("targets.json", *targets)
        (state_dir / "admin.key").write_text("hr-admin")

    def write_targets(self, name: str, *targets: tuple[str, str, str]) -> None:
        told = [
            {"targets": [address], "labels": {"process": kind, kind: its_name, "pid": "1"}}
            for kind, its_name, address in targets
        ]
        (self.state_dir / "run" / name).write_text(json.dumps(told))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            address = f"{request.url.host}:{request.url.port}"
            if address not in self.pages:
                raise httpx.ConnectError("refused")
            return httpx.Response(200, text=self.pages[address])
        self.asked += 1
        assert request.url.path == "/admin/v1/usage"
        assert request.headers["authorization"] == "Bearer hr-admin"
        tenant = request.url.params.get("tenant_id")
        chosen = [tenant] if tenant else [name for name in self.usage if name != "deleted"]
        if tenant and tenant not in self.usage:
            error = {"message": "no such tenant", "param": None, "type": "x", "code": "x"}
            return httpx.Response(404, json={"error": error})
        rows = [{"tenant_id": name, "day": DAY, **self.usage[name]._asdict()} for name in chosen]
        return httpx.Response(
            200, json={"object": "list", "data": rows, "has_more": False, "next_after": None}
        )


@pytest.fixture
async def cluster(tmp_path: Path) -> Cluster:
    await spooled(tmp_path / "spool", "g1", *SETTLED)
    return Cluster(tmp_path)


def run(cluster: Cluster, *arguments: str) -> Result:
    days = ["--from", "2026-11-01", "--to", DAY, "--wait", "0"]
    files = ["--state-dir", str(cluster.state_dir), "--key-file", str(cluster.state_dir / "admin.key")]
    return CliRunner().invoke(
        headrace.main, ["ledger", "verify", *days, *files, *arguments], obj=httpx.MockTransport(cluster)
    )


def told(result: Result) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def test_books_that_agree_hold_those_of_a_deleted_tenant_too(cluster: Cluster) -> None:
    result = run(cluster, "--json")
    assert result.exit_code == 0, result.output
    answer = told(result)
    assert (answer["held"], answer["differences"], answer["in_doubt"]) == (True, [], [])
    assert {(row["check"], row["tenant"]) for row in answer["rows"]} == {
        *((check, tenant) for check in ("usage", "metrics") for tenant in ("acme", "deleted")),
        ("engine", None),
    }


def test_people_read_what_was_compared(cluster: Cluster) -> None:
    result = run(cluster)
    assert result.exit_code == 0
    assert "usage: 10 of 10 figures equal" in result.stdout
    assert "engine: 1 of 1 figures equal" in result.stdout
    assert result.stdout.splitlines()[-1] == "held"


def test_a_difference_exits_1_and_is_shown(cluster: Cluster) -> None:
    cluster.usage["acme"] = cluster.usage["acme"]._replace(cost=4)
    result = run(cluster)
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "different" in line and "cost" in line]
    assert line.split() == ["usage", "acme", DAY, "cost", "3", "4", "different"]
    assert told(run(cluster, "--json"))["differences"][0]["high"] == 4


def test_it_looks_again_while_something_is_on_its_way(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = cluster.usage["acme"]
    cluster.usage["acme"] = Sums()
    monkeypatch.setattr(verify_command.time, "sleep", lambda seconds: cluster.usage.update(acme=late))
    assert run(cluster, "--wait", "60").exit_code == 0


def test_a_replica_that_is_gone_is_listed_as_in_doubt(cluster: Cluster) -> None:
    cluster.pages["replica:2"] = engine_page(9)
    cluster.write_targets("targets.json", ("gateway", "g1", "gateway:1"), ("replica", "r2", "replica:2"))
    assert run(cluster).exit_code == 1
    cluster.write_targets("gone.json", ("replica", "r1", "replica:1"))
    result = run(cluster, "--json")
    assert result.exit_code == 0
    assert told(result)["in_doubt"][0]["what"] == "replica r1 is gone, and its counters with it"


def test_a_target_that_does_not_answer_is_gone(cluster: Cluster) -> None:
    del cluster.pages["gateway:1"]
    answer = told(run(cluster, "--json"))
    assert [doubt["gateway"] for doubt in answer["in_doubt"]] == ["g1"]
    assert {row["check"] for row in answer["rows"]} == {"usage", "engine"}


def test_what_cannot_be_checked_exits_2_with_a_line(cluster: Cluster) -> None:
    (cluster.state_dir / "run" / "targets.json").write_text("{")
    result = run(cluster)
    assert result.exit_code == 2
    assert "targets.json is damaged" in result.stderr
    (cluster.state_dir / "run" / "targets.json").write_text("[]")
    cluster.pages = {}
    assert run(cluster, "--from", "2026-12-01").exit_code == 2
    assert run(cluster, "--state-dir", str(cluster.state_dir / "none")).exit_code == 2


def test_a_page_of_metrics_is_read_as_the_gateway_and_the_replica_write_it() -> None:
    page = metrics_page(*SETTLED, a_settlement(4, outcome="unserved", cost=0))
    assert gateway_reading(page) == GatewayReading(
        tenants={"acme": Sums(2, 30, 12, 21, 3), "deleted": Sums(1, 10, 4, 7, 3)},
        discarded_tokens=0,
        lost_links=0,
    )
    assert engine_reading(engine_page(21)) == (21, 0)
    with pytest.raises(ValueError, match="missing"):
        engine_reading("")
