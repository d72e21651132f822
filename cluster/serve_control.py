"""Pools of replicas on Ray Serve. All of Ray's names that scale in place and are not public are used here.

`update_deployment_replicas` of Serve's controller is what Ray's own REST API for external scalers calls.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import ray
from ray import serve
from ray.serve._private.common import DeploymentID
from ray.serve._private.exceptions import DeploymentIsBeingDeletedError
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ReplicaState

from cluster.application import pool
from cluster.pool_control import UnknownPool
from cluster.pool_names import REPLICA_DEPLOYMENT, application_of, pool_of
from cluster.pool_status import PoolStatus
from cluster.spec import ClusterSpec
from cluster.stages import StartError

CALL_TIMEOUT_S = 10.0


class ServePools:
    """`PoolControl` on the Serve instance that this process is connected to."""

    def deploy(self, spec: ClusterSpec, num_replicas: int) -> None:
        if spec.pool_id in self.pools():
            raise ValueError(f"there is a pool {spec.pool_id!r} already")
        serve.run_many([pool(spec, num_replicas)], wait_for_applications_running=False)

    def scale(self, pool_id: str, num_replicas: int) -> None:
        deployment = DeploymentID(REPLICA_DEPLOYMENT, application_of(pool_id))
        order = _get_global_client()._controller.update_deployment_replicas.remote(deployment, num_replicas)
        try:
            ray.get(order, timeout=CALL_TIMEOUT_S)
        except (ValueError, DeploymentIsBeingDeletedError):
            raise UnknownPool(pool_id) from None

    def delete(self, pool_id: str) -> None:
        serve.delete(application_of(pool_id), _blocking=False)

    def pools(self) -> frozenset[str]:
        return frozenset(one for name in _applications() if (one := pool_of(name)) is not None)

    def status(self, pool_id: str) -> PoolStatus | None:
        application = _applications().get(application_of(pool_id))
        if application is None:
            return None
        replicas = application["deployments"].get(REPLICA_DEPLOYMENT)
        if replicas is None:  # taken in and not yet looked at
            return PoolStatus(frozenset(), 0, failure_of(application))
        by_state: dict[str, set[str]] = defaultdict(set)
        for one in replicas["replicas"]:
            by_state[one["state"]].add(one["replica_id"])
        return PoolStatus(
            frozenset(by_state[ReplicaState.RUNNING]),
            replicas["target_num_replicas"],
            failure_of(application),
            starting=frozenset(by_state[ReplicaState.STARTING]),
            leaving=frozenset(by_state[ReplicaState.STOPPING]),
        )


def deploy_failure() -> StartError | None:
    """What Serve says if an application could not be deployed."""
    for application in _applications().values():
        if (failure := failure_of(application)) is not None:
            return StartError(failure, "see <state-dir>/run/ray and launch.log")
    return None


def failure_of(application: dict[str, Any]) -> str | None:
    """The last line of what Serve says of a failed deployment; a traceback may stand before it."""
    if application["status"] != ApplicationStatus.DEPLOY_FAILED:
        return None
    said = [one.get("message", "") for one in application["deployments"].values()]
    lines = "\n".join(filter(str.strip, [application["message"], *said])).strip().splitlines()
    return (lines or ["Serve could not deploy"])[-1].strip()[:300]


def _applications() -> dict[str, dict[str, Any]]:
    """By name, as `ray.serve.schema.ServeInstanceDetails` lays them out."""
    applications: dict[str, dict[str, Any]] = _get_global_client().get_serve_details()["applications"]
    return applications
