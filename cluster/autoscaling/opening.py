"""The scaling runner of a real cluster: what of Ray, Redis and its start it is given."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console

from cluster.autoscaling.cold_start import LOADING
from cluster.autoscaling.policy import Autoscaler, ScaleLimits
from cluster.autoscaling.runner import ScalingRunner
from cluster.autoscaling.store import StatusBoard
from cluster.rollout.runner import RolloutRunner
from cluster.settings import ServeSettings
from cluster.start_reports import StageReport, StartReports


def limits_of(settings: ServeSettings) -> ScaleLimits:
    return ScaleLimits(
        settings.fewest_replicas, settings.most_replicas, settings.headroom, settings.scale_down_delay_s
    )


def seconds_of_starts(passed: Iterable[StageReport]) -> list[dict[str, float]]:
    """By stage, for each replica that started with the cluster: how long nodes took was not seen then."""
    by_replica: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(LOADING, 0.0))
    for report in passed:
        by_replica[report.replica_id][report.stage] = report.seconds
    return list(by_replica.values())


def open_scaling(rollouts: RolloutRunner, passed: Iterable[StageReport], console: Console) -> ScalingRunner:
    """Of a cluster that is served by this process's Ray driver; `passed` is what its start told."""
    from cluster.serve_control import ServePools

    spec = rollouts.serving
    runner = ScalingRunner(
        Autoscaler(limits_of(spec.settings)),
        rollouts,
        ServePools(),
        StatusBoard(spec.redis_url, spec.cluster_id),
        lambda spec: StartReports(spec.redis_url, spec.reports_id),
        clock=time.monotonic,
        wall_clock=time.time,
        say=lambda text: console.print(f"scaling: {text}", markup=False, soft_wrap=True),
    )
    for seconds in seconds_of_starts(passed):
        runner.cold_starts[spec.settings.model].learn(seconds)
    return runner
