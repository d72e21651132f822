"""The Serve applications as they are declared, and how all is taken down.

One application holds the gateways; each pool of replicas is an application of its own, without a route.
`serve.run` restarts every deployment of an application, the gateways too, and stops an old replica
before the new one is known to work; so nothing is ever deployed twice, and a pool's size is set in place.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.api import RunTarget
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster import gateway, replica
from cluster.leaving import DRAIN_SLACK_S
from cluster.pool_names import APPLICATION, REPLICA_DEPLOYMENT, application_of
from cluster.spec import ClusterSpec

log = logging.getLogger("headrace.launch")

MAX_ONGOING = 10_000
"""Admission is ours; Ray's own limit must never be met."""


class EmptyIngress:
    """What a pool has for an ingress: Serve wants one, and takes no router of ours there.

    It has no replica, so there is no process and no port.
    """

    def __init__(self, replicas: DeploymentHandle) -> None: ...


def gateways(spec: ClusterSpec) -> RunTarget:
    deployment = serve.deployment(
        gateway.Gateway,
        name="Gateway",
        num_replicas=spec.settings.gateways,
        # Spread: a node that dies must not take all of them.
        max_replicas_per_node=-(-spec.settings.gateways // spec.num_nodes) if spec.num_nodes > 1 else None,
        ray_actor_options={"num_cpus": 0.1},
        **_common(spec),
    )
    return RunTarget(deployment.bind(spec.to_json()), name=APPLICATION, route_prefix="/")


def pool(spec: ClusterSpec, num_replicas: int) -> RunTarget:
    gpus = 1 if spec.settings.device == "cuda" else 0
    replicas = serve.deployment(
        replica.Replica,
        name=REPLICA_DEPLOYMENT,
        num_replicas=num_replicas,
        ray_actor_options={"num_cpus": 0.1, "num_gpus": gpus},
        request_router_config=serve.config.RequestRouterConfig(
            request_router_class="cluster.router:PinnedRouter"
        ),
        **_common(spec),
    )
    none_at_all = serve.config.AutoscalingConfig(min_replicas=0, initial_replicas=0, max_replicas=1)
    ingress = serve.deployment(EmptyIngress, name="Ingress", autoscaling_config=none_at_all)
    return RunTarget(
        ingress.bind(replicas.bind(spec.to_json())),
        name=application_of(spec.pool_id),
        route_prefix=None,
        external_scaler_enabled=True,
    )


def _common(spec: ClusterSpec) -> dict[str, Any]:
    return {
        "max_ongoing_requests": MAX_ONGOING,
        # A constructor that failed once fails again; the launcher shows why.
        "max_constructor_retry_count": 1,
        "graceful_shutdown_timeout_s": spec.settings.drain_limit_s + DRAIN_SLACK_S,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 1,
        "health_check_timeout_s": 2,
        # A line a call, each flushed, took a tenth of a short request's CPU; metrics count requests.
        "logging_config": {"log_level": spec.settings.log_level.upper(), "enable_access_log": False},
    }


async def shut_down(drain_limit_s: float) -> int:
    """Drains every gateway, then takes Serve down. Returns how many requests were cut off at the limit.

    One coroutine, because Serve's handles live and die with the loop that made them.
    """
    try:
        handle = serve.get_app_handle(APPLICATION)
        async with asyncio.timeout(drain_limit_s + DRAIN_SLACK_S):
            return sum(await handle.broadcast("drain", drain_limit_s).results_async())
    except (RayError, RayServeException, TimeoutError):
        log.exception("a gateway could not be drained")
        return 0
    finally:
        await serve.shutdown_async()
