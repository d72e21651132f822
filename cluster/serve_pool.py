"""A pool of replicas over Ray Serve: the handle of its application, and which pools are deployed."""

from __future__ import annotations

import asyncio

from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle

from cluster.link import CALL_TIMEOUT_S
from cluster.pool_names import REPLICA_DEPLOYMENT, application_of, pool_of
from cluster.replica_registry import Listener, forget, watch
from cluster.serve_link import ServeLink


class ServePool:
    """Owns one handle; made and closed on the running loop, to which handles are bound."""

    def __init__(self, pool_id: str, gateway_id: str, listener: Listener) -> None:
        self._gateway_id = gateway_id
        self._application = application_of(pool_id)
        # Not `serve.get_deployment_handle`, which gives the same closed one for a pool that came back.
        self._handle = DeploymentHandle(REPLICA_DEPLOYMENT, self._application)
        self._handle._init()  # Serve handles are lazy; this starts the router, which feeds the watch
        watch(self._application).subscribe(asyncio.get_running_loop(), listener)

    def link(self, replica_id: str) -> ServeLink:
        return ServeLink(self._handle, self._gateway_id, replica_id)

    async def close(self) -> None:
        forget(self._application)
        await self._handle.shutdown_async()


async def deployed_pools() -> frozenset[str]:
    """Asks Serve's controller. Raises `RayError` or `TimeoutError` while it cannot answer."""
    controller = _get_global_client()._controller
    async with asyncio.timeout(CALL_TIMEOUT_S):
        deployments = await controller.list_deployment_ids.remote()
    return frozenset(pool for one in deployments if (pool := pool_of(one.app_name)) is not None)
