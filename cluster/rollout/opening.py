"""The rollout runner of a real cluster: what of Ray, Redis and this machine it is given."""

from __future__ import annotations

import time

import psutil
from rich.console import Console

from cluster.rollout.check import TextRules, Version
from cluster.rollout.runner import RolloutRunner
from cluster.rollout.store import RolloutQueue
from cluster.settings import root_secret
from cluster.spec import ClusterSpec
from cluster.start_reports import StartReports


def has_room(version: Version) -> bool:
    """Whether one more replica fits beside what runs: a free GPU, or this machine's memory. The memory of
    other machines is not known: there a replica that finds none fails, and the rollout with it.
    """
    settings = version.spec.settings
    if settings.device == "cuda":
        import ray

        return bool(ray.available_resources().get("GPU", 0) >= 1)
    if settings.ray_address is not None:
        return True
    return psutil.virtual_memory().available >= version.replica_bytes


def open_rollouts(serving: ClusterSpec, rules: TextRules, console: Console) -> RolloutRunner:
    """The runner of a cluster that is served by this process's Ray driver."""
    from cluster.serve_control import ServePools

    return RolloutRunner(
        serving,
        rules,
        ServePools(),
        RolloutQueue(serving.redis_url, serving.cluster_id, root_secret(serving.settings.state_dir)),
        lambda spec: StartReports(spec.redis_url, spec.reports_id),
        has_room=has_room,
        clock=time.monotonic,
        wall_clock=time.time,
        say=lambda text: console.print(f"rollout: {text}", markup=False, soft_wrap=True),
    )
