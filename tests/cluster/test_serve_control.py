"""Pools on Serve: what is asked of its controller, how its answers read, and that it has these calls."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve._private.common import DeploymentID
from ray.serve._private.controller import ServeController
from ray.serve._private.exceptions import DeploymentIsBeingDeletedError

from cluster import serve_control
from cluster.pool_control import UnknownPool
from cluster.pool_status import PoolStatus
from cluster.serve_control import ServePools, deploy_failure
from tests.cluster.test_application import make_spec


def application(
    status: str = "RUNNING", message: str = "", replica_message: str = "", **replica: Any
) -> dict[str, Any]:
    """As Serve's details lay it out, with the pool's deployment in it."""
    deployment = {"message": replica_message, "replicas": [], "target_num_replicas": 1} | replica
    ingress = {"message": "", "replicas": [], "target_num_replicas": 0}
    return {"status": status, "message": message, "deployments": {"Ingress": ingress, "Replica": deployment}}


class FakeServe:
    """Serve's client and its controller, in one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.applications: dict[str, dict[str, Any]] = {"headrace": application()}
        self.scaled: list[tuple[DeploymentID, int]] = []
        self.deployed: list[str] = []
        self.deleted: list[tuple[str, bool]] = []
        self.refusal: Exception | None = None
        self._controller = SimpleNamespace(update_deployment_replicas=SimpleNamespace(remote=self._scale))
        monkeypatch.setattr(serve_control, "_get_global_client", lambda: self)
        monkeypatch.setattr(ray, "get", self._get)
        monkeypatch.setattr(serve, "delete", lambda name, _blocking: self.deleted.append((name, _blocking)))
        monkeypatch.setattr(serve, "run_many", self._run_many)

    def get_serve_details(self) -> dict[str, Any]:
        return {"applications": self.applications}

    def _scale(self, deployment: DeploymentID, num_replicas: int) -> None:
        self.scaled.append((deployment, num_replicas))

    def _get(self, order: None, timeout: float) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _run_many(self, targets: list[Any], wait_for_applications_running: bool) -> None:
        assert not wait_for_applications_running
        self.deployed += [target.name for target in targets]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    return FakeServe(monkeypatch)


class TestOrders:
    def test_a_pool_is_deployed_as_an_application_of_its_own(self, fake: FakeServe) -> None:
        ServePools().deploy(make_spec(pool_id="2"), 3)
        assert fake.deployed == ["engine-2"]

    def test_a_pool_that_is_there_is_not_deployed_again(self, fake: FakeServe) -> None:
        """Serve would restart all of its replicas."""
        fake.applications["engine-2"] = application()
        with pytest.raises(ValueError, match="there is a pool '2' already"):
            ServePools().deploy(make_spec(pool_id="2"), 3)
        assert fake.deployed == []

    def test_a_size_is_set_in_place(self, fake: FakeServe) -> None:
        ServePools().scale("2", 5)
        assert fake.scaled == [(DeploymentID(name="Replica", app_name="engine-2"), 5)]

    @pytest.mark.parametrize("refusal", [ValueError("not found"), DeploymentIsBeingDeletedError()])
    def test_a_size_of_no_pool_is_refused(self, fake: FakeServe, refusal: Exception) -> None:
        fake.refusal = refusal
        with pytest.raises(UnknownPool, match="2"):
            ServePools().scale("2", 5)

    def test_a_pool_is_deleted_without_waiting_for_its_answers(self, fake: FakeServe) -> None:
        ServePools().delete("2")
        assert fake.deleted == [("engine-2", False)]


class TestStatus:
    def test_the_gateways_are_no_pool(self, fake: FakeServe) -> None:
        fake.applications |= {"engine-1": application(), "engine-new-2": application("DELETING")}
        assert ServePools().pools() == {"1", "new-2"}

    def test_of_no_pool_is_none(self, fake: FakeServe) -> None:
        assert ServePools().status("1") is None

    def test_running_are_those_that_loaded_and_do_not_leave(self, fake: FakeServe) -> None:
        replicas = [
            {"replica_id": name, "state": state}
            for name, state in (("R", "RUNNING"), ("S", "STARTING"), ("s", "STOPPING"))
        ]
        fake.applications["engine-1"] = application(replicas=replicas, target_num_replicas=2)
        assert ServePools().status("1") == PoolStatus(
            frozenset("R"), target=2, starting=frozenset("S"), leaving=frozenset("s")
        )

    def test_a_pool_that_serve_has_not_looked_at_yet_has_nobody(self, fake: FakeServe) -> None:
        fake.applications["engine-1"] = application("DEPLOYING") | {"deployments": {}}
        assert ServePools().status("1") == PoolStatus(frozenset(), target=0)

    def test_a_failure_is_the_last_line_of_what_the_deployment_says(self, fake: FakeServe) -> None:
        said = "The deployment failed to start. Error:\n  File x\nRuntimeError: no memory\n"
        fake.applications["engine-1"] = application("DEPLOY_FAILED", "Failed to update Replica.", said)
        status = ServePools().status("1")
        assert status is not None
        assert status.failure == "RuntimeError: no memory"


class TestFailure:
    def of(self, fake: FakeServe, status: str, message: str = "") -> str | None:
        fake.applications["engine-1"] = application(status, message)
        failure = deploy_failure()
        return None if failure is None else failure.message

    def test_of_any_application_counts(self, fake: FakeServe) -> None:
        assert self.of(fake, "DEPLOY_FAILED", "Deploying failed:\n  File x\nOSError: no") == "OSError: no"
        fake.applications = {"headrace": fake.applications["engine-1"], "engine-1": application()}
        assert deploy_failure() is not None

    def test_is_short(self, fake: FakeServe) -> None:
        assert self.of(fake, "DEPLOY_FAILED", "x" * 999) == "x" * 300

    def test_without_a_word_is_a_failure_all_the_same(self, fake: FakeServe) -> None:
        assert self.of(fake, "DEPLOY_FAILED") == "Serve could not deploy"

    @pytest.mark.parametrize("status", ["DEPLOYING", "RUNNING", "UNHEALTHY"])
    def test_is_none_while_it_deploys_or_runs(self, fake: FakeServe, status: str) -> None:
        assert self.of(fake, status, "fine") is None


def test_serve_s_controller_has_the_calls_that_are_not_public() -> None:
    controller = ServeController
    scale = inspect.signature(controller.update_deployment_replicas)
    assert list(scale.parameters) == ["self", "deployment_id", "target_num_replicas"]
    assert list(inspect.signature(controller.list_deployment_ids).parameters) == ["self"]
