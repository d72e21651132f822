"""Builds a replica's engine, stage by stage, and tells the launcher how far it is."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from cluster.link import Hello
from cluster.spec import ClusterSpec
from cluster.start_reports import StageReport, StartReports
from engine.block_hash import model_root
from engine.build import build_executor
from engine.core import EngineCore
from engine.faults import FaultyExecutor, parse_faults
from engine.loading.source import ModelError, resolve_model
from engine.policy import FirstComeFirstServed
from engine.scheduler import Scheduler

SLOWER_THAN_WARM_UP = 2.0
"""The warm-up takes the heaviest steps there are; under load one may take so much longer than all of it."""


@dataclass(frozen=True)
class LoadedEngine:
    core: EngineCore
    hello: Hello
    watchdog_s: float
    """How long it may stand still: what was asked for, and never less than a long step can take."""


def load_engine(spec: ClusterSpec, replica_id: str) -> LoadedEngine:
    """Loads weights, takes the KV pool and warms up. A failure is reported, then raised."""
    reports = StartReports(spec.redis_url, spec.cluster_id)
    try:
        return _load(spec, replica_id, reports)
    except Exception as error:
        message, remedy = _explain(error)
        reports.push(StageReport(replica_id, reports.current, 0.0, error=message, remedy=remedy))
        raise
    finally:
        reports.close()


def _load(spec: ClusterSpec, replica_id: str, reports: StartReports) -> LoadedEngine:
    source, config = resolve_model(spec.settings.model), spec.engine.config
    executor = build_executor(
        source,
        config,
        dtype=spec.engine.dtype,
        device=spec.settings.device,
        kv_dtype=spec.engine.kv_dtype,
        deterministic=spec.settings.deterministic,
        num_threads=spec.threads_per_replica,
        stage=lambda name: reports.stage(replica_id, name, time.monotonic),
    )
    if spec.settings.fault is not None:
        executor = FaultyExecutor(executor, parse_faults(spec.settings.fault))
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=source.config.eos_token_ids)
    core = EngineCore(scheduler, executor, time.monotonic)
    hello = Hello(
        replica_id=replica_id,
        incarnation=secrets.randbits(32),
        model_id=source.config.model_id,
        revision=source.config.revision,
        hash_root=model_root(source.config, kv_dtype=spec.engine.kv_dtype),
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        num_blocks=config.num_blocks,
    )
    longest_step_s = SLOWER_THAN_WARM_UP * reports.seconds.get("warm-up", 0.0)
    return LoadedEngine(core, hello, max(spec.settings.watchdog_s, longest_step_s))


def _explain(error: Exception) -> tuple[str, str]:
    """What went wrong in one line, and the remedy."""
    if isinstance(error, ModelError):
        return error.message, error.remedy
    if isinstance(error, MemoryError) or "alloc" in str(error).lower():
        return "out of memory while loading", "lower --kv-memory or --replicas"
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first}"[:300], "see the replica's log in <state-dir>/run/ray"
