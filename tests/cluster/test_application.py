"""The Serve applications as they are declared, and how they are taken down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import serve
from ray.exceptions import RayError
from ray.serve._private import build_app as serve_build
from ray.serve.api import RunTarget

from cluster.application import gateways, pool, shut_down
from cluster.leaving import DRAIN_SLACK_S
from cluster.settings import ServeSettings
from cluster.spec import ClusterSpec, EnginePlan
from engine.config import EngineConfig


def make_spec(pool_id: str = "1", num_nodes: int = 1, **settings: Any) -> ClusterSpec:
    return ClusterSpec(
        settings=ServeSettings(model="tape:", **settings),
        engine=EnginePlan(EngineConfig(num_blocks=10, max_model_len=100), "float32", "float32"),
        served_name="tape",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        pool_id=pool_id,
        num_nodes=num_nodes,
        run_path=Path("/tmp/hr-0/abcdef"),
        threads_per_replica=1,
    )


@pytest.fixture(autouse=True)
def behind_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve refuses some applications there that it takes otherwise."""
    monkeypatch.setattr(serve_build, "RAY_SERVE_ENABLE_HA_PROXY", True)


def built(target: RunTarget) -> serve_build.BuiltApplication:
    return serve_build.build_app(target.target, name=target.name, route_prefix=target.route_prefix)


def deployment(target: RunTarget, name: str) -> Any:
    (found,) = [one for one in built(target).deployments if one.name == name]
    return found


def test_gateways_have_the_front_and_each_pool_is_an_application_of_its_own() -> None:
    spec = make_spec(gateways=2, pool_id="7")
    front, back = gateways(spec), pool(spec, 3)
    assert (front.name, front.route_prefix) == ("headrace", "/")
    assert (back.name, back.route_prefix) == ("engine-7", None)
    gateway, replica = deployment(front, "Gateway"), deployment(back, "Replica")
    assert (gateway.num_replicas, replica.num_replicas) == (2, 3)
    assert ClusterSpec.from_json(gateway.init_args[0]) == ClusterSpec.from_json(replica.init_args[0]) == spec


def test_a_pool_s_size_can_be_set_from_outside_and_its_ingress_is_no_process() -> None:
    target = pool(make_spec(), 3)
    assert target.external_scaler_enabled
    ingress = built(target).ingress_deployment_name
    scaling = deployment(target, ingress)._deployment_config.autoscaling_config
    assert ingress != "Replica"
    assert (scaling.min_replicas, scaling.initial_replicas) == (0, 0)


def test_ray_s_own_limits_are_never_met_and_an_answer_may_end_or_move() -> None:
    spec = make_spec(drain_limit_s=30)
    for one in (deployment(gateways(spec), "Gateway"), deployment(pool(spec, 1), "Replica")):
        assert one.max_ongoing_requests == 10_000
        config = one._deployment_config
        assert config.graceful_shutdown_timeout_s == 30 + DRAIN_SLACK_S
        assert config.graceful_shutdown_wait_loop_s == 0.2
        assert (config.health_check_period_s, config.health_check_timeout_s) == (1, 2)


def test_serve_writes_no_line_a_call() -> None:
    for one in (deployment(gateways(make_spec()), "Gateway"), deployment(pool(make_spec(), 1), "Replica")):
        assert one._deployment_config.logging_config["enable_access_log"] is False


def test_calls_go_through_our_router() -> None:
    router = deployment(pool(make_spec(), 1), "Replica")._deployment_config.request_router_config
    assert router.get_request_router_class().__name__ == "PinnedRouter"


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1)])
def test_a_replica_has_a_gpu_where_it_computes_on_one(device: str, gpus: int) -> None:
    spec = make_spec(device=device)
    assert deployment(pool(spec, 1), "Replica").ray_actor_options["num_gpus"] == gpus
    assert not deployment(gateways(spec), "Gateway").ray_actor_options.get("num_gpus")


@pytest.mark.parametrize(("num_nodes", "on_one"), [(1, None), (2, 2), (3, 1)])
def test_gateways_are_spread_over_the_nodes(num_nodes: int, on_one: int | None) -> None:
    spec = make_spec(gateways=3, num_nodes=num_nodes)
    assert deployment(gateways(spec), "Gateway")._replica_config.max_replicas_per_node == on_one


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
