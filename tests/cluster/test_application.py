"""The Serve application as it is declared, what Serve says of its failure, and how it is taken down."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.exceptions import RayError
from ray.serve.schema import ApplicationStatus

from cluster.application import build_application, deploy_failure, shut_down
from cluster.settings import ServeSettings
from cluster.spec import ClusterSpec, EnginePlan
from engine.config import EngineConfig


def make_spec(**settings: Any) -> ClusterSpec:
    return ClusterSpec(
        settings=ServeSettings(model="tape:", **settings),
        engine=EnginePlan(EngineConfig(num_blocks=10, max_model_len=100), "float32", "float32"),
        served_name="tape",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        run_path=Path("/tmp/hr-0/abcdef"),
        threads_per_replica=1,
    )


def deployments(spec: ClusterSpec) -> tuple[Any, Any]:
    """The gateway's and the replica's."""
    gateway = build_application(spec, max_answer_s=600)._bound_deployment
    return gateway, gateway.init_args[1]._bound_deployment


def test_gateways_stand_before_replicas_in_the_asked_numbers() -> None:
    spec = make_spec(replicas=3, gateways=2)
    gateway, replica = deployments(spec)
    assert (gateway.name, gateway.num_replicas) == ("Gateway", 2)
    assert (replica.name, replica.num_replicas) == ("Replica", 3)
    assert ClusterSpec.from_json(gateway.init_args[0]) == ClusterSpec.from_json(replica.init_args[0]) == spec


def test_ray_s_own_limits_are_never_met_and_an_answer_may_end() -> None:
    for deployment in deployments(make_spec()):
        assert deployment.max_ongoing_requests == 10_000
        config = deployment._deployment_config
        assert config.graceful_shutdown_timeout_s == 600
        assert config.graceful_shutdown_wait_loop_s == 0.2
        assert (config.health_check_period_s, config.health_check_timeout_s) == (1, 2)


def test_calls_go_through_our_router() -> None:
    _, replica = deployments(make_spec())
    router = replica._deployment_config.request_router_config
    assert router.get_request_router_class().__name__ == "PinnedRouter"


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1)])
def test_a_replica_has_a_gpu_where_it_computes_on_one(device: str, gpus: int) -> None:
    gateway, replica = deployments(make_spec(device=device))
    assert replica.ray_actor_options["num_gpus"] == gpus
    assert not gateway.ray_actor_options.get("num_gpus")


class TestFailure:
    def of(self, monkeypatch: pytest.MonkeyPatch, status: ApplicationStatus, message: str = "") -> str | None:
        applications = {"headrace": SimpleNamespace(status=status, message=message)}
        monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications=applications))
        failure = deploy_failure()
        return None if failure is None else failure.message

    def test_is_the_last_line_of_what_serve_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said = "Deploying app failed:\n  File x\nRuntimeError: no memory\n"
        assert self.of(monkeypatch, ApplicationStatus.DEPLOY_FAILED, said) == "RuntimeError: no memory"

    def test_is_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.of(monkeypatch, ApplicationStatus.DEPLOY_FAILED, "x" * 999) == "x" * 300

    def test_without_a_word_is_a_failure_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.of(monkeypatch, ApplicationStatus.DEPLOY_FAILED) == "Serve could not deploy"

    def test_is_none_while_it_deploys_or_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for status in (ApplicationStatus.DEPLOYING, ApplicationStatus.RUNNING):
            assert self.of(monkeypatch, status, "fine") is None

    def test_is_none_before_serve_knows_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications={}))
        assert deploy_failure() is None


class FakeServe:
    """Gateways that drain as the test says, and whether Serve was taken down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, drained: list[int] | Exception) -> None:
        self._drained = drained
        self.asked: tuple[Any, ...] = ()
        self.is_down = False
        monkeypatch.setattr(serve, "get_app_handle", lambda name: self)
        monkeypatch.setattr(serve, "shutdown_async", self._shut_down)

    def broadcast(self, *asked: Any) -> FakeServe:
        self.asked = asked
        return self

    async def results_async(self) -> list[int]:
        assert not self.is_down
        if isinstance(self._drained, Exception):
            raise self._drained
        return self._drained

    async def _shut_down(self) -> None:
        self.is_down = True


class TestTakingDown:
    async def test_drains_every_gateway_first_and_counts_who_was_cut_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake = FakeServe(monkeypatch, [2, 1])
        assert await shut_down(30.0) == 3
        assert fake.asked == ("drain", 30.0)
        assert fake.is_down

    @pytest.mark.parametrize("error", [RayError("gone"), TimeoutError()])
    async def test_goes_on_without_a_gateway_that_cannot_be_drained(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        fake = FakeServe(monkeypatch, error)
        assert await shut_down(30.0) == 0
        assert fake.is_down
