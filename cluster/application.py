"""The Serve application: gateways in front, replicas behind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from cluster import gateway, replica
from cluster.spec import ClusterSpec
from cluster.stages import StartError

log = logging.getLogger("headrace.launch")

APPLICATION = "headrace"
MAX_ONGOING = 10_000
"""Admission is ours; Ray's own limit must never be met."""
DRAIN_SLACK_S = 5.0


def build_application(spec: ClusterSpec, max_answer_s: float) -> serve.Application:
    """`max_answer_s`: how long a leaving replica or gateway may finish its answers."""
    settings = spec.settings
    common: dict[str, Any] = {
        "max_ongoing_requests": MAX_ONGOING,
        # A constructor that failed once fails again; the launcher shows why.
        "max_constructor_retry_count": 1,
        "graceful_shutdown_timeout_s": max_answer_s,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 1,
        "health_check_timeout_s": 2,
        "logging_config": {"log_level": settings.log_level.upper()},
    }
    gpus = 1 if settings.device == "cuda" else 0
    replicas = serve.deployment(
        replica.Replica,
        name=gateway.REPLICA_DEPLOYMENT,
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": 0.1, "num_gpus": gpus},
        request_router_config=serve.config.RequestRouterConfig(
            request_router_class="cluster.router:PinnedRouter"
        ),
        **common,
    ).bind(spec.to_json())
    return serve.deployment(
        gateway.Gateway,
        name="Gateway",
        num_replicas=settings.gateways,
        ray_actor_options={"num_cpus": 0.1},
        **common,
    ).bind(spec.to_json(), replicas)


def deploy_failure() -> StartError | None:
    """What Serve says if the application could not be deployed."""
    application = serve.status().applications.get(APPLICATION)
    if application is None or application.status != ApplicationStatus.DEPLOY_FAILED:
        return None
    said = application.message.strip().splitlines() or ["Serve could not deploy"]
    return StartError(said[-1][:300], "see <state-dir>/run/ray and launch.log")


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
