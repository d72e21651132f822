"""Builds a replica's engine, stage by stage, and tells the launcher how far it is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from cluster.fair_policy import FairShare
from cluster.golden import BUILT_IN
from cluster.golden_check import NEAR_TIE, GoldenCheck
from cluster.link import Hello
from cluster.spec import ClusterSpec
from cluster.start_reports import StageReport, StartReports
from engine.block_events import BlockListener
from engine.block_hash import model_root
from engine.build import build_executor
from engine.core import EngineCore
from engine.executor import Executor
from engine.faults import FaultyExecutor, parse_faults
from engine.loading.source import ModelError, ModelSource, resolve_model
from engine.policy import FirstComeFirstServed
from engine.scheduler import Scheduler

SLOWER_THAN_WARM_UP = 2.0
"""The warm-up takes the heaviest steps there are; under load one may take so much longer than all of it."""


@dataclass(frozen=True)
class LoadedEngine:
    core: EngineCore
    hello: Hello
    """Its incarnation is drawn and not claimed yet."""
    watchdog_s: float
    """How long it may stand still: what was asked for, and never less than a long step can take."""
    start_seconds: Mapping[str, float]
    """What each stage of the start took."""


def load_engine(spec: ClusterSpec, replica_id: str, listener: BlockListener) -> LoadedEngine:
    """Loads weights, takes the KV pool, warms up and asks golden prompts. A failure is reported, then raised.

    `listener` is told what becomes of the engine's blocks.
    """
    reports = StartReports(spec.redis_url, spec.reports_id)
    try:
        return _load(spec, replica_id, reports, listener)
    except Exception as error:
        message, remedy = _explain(error)
        reports.push(StageReport(replica_id, reports.current, 0.0, error=message, remedy=remedy))
        raise
    finally:
        reports.close()


def _load(spec: ClusterSpec, replica_id: str, reports: StartReports, listener: BlockListener) -> LoadedEngine:
    reports.passed(replica_id, "import", time.time() - psutil.Process().create_time())
    source, config = resolve_model(spec.settings.model), spec.engine.config
    _check_revision(spec, source)
    executor = build_executor(
        source,
        config,
        dtype=spec.engine.dtype,
        device=spec.settings.device,
        kv_dtype=spec.engine.kv_dtype,
        deterministic=spec.settings.deterministic,
        num_threads=spec.threads_per_replica,
        backend=spec.settings.attention_backend,
        quantization=spec.settings.quantization,
        stage=lambda name: reports.stage(replica_id, name, time.monotonic),
    )
    with reports.stage(replica_id, "golden", time.monotonic) as detail:
        detail(_ask_golden(spec, source, executor))
    if spec.settings.fault is not None:
        executor = FaultyExecutor(executor, parse_faults(spec.settings.fault))
    scheduler = Scheduler(config, FairShare(), eos_token_ids=source.config.eos_token_ids, listener=listener)
    core = EngineCore(scheduler, executor, time.monotonic)
    hello = Hello(
        replica_id=replica_id,
        incarnation=secrets.randbits(32),
        model_id=source.config.model_id,
        revision=source.config.revision,
        hash_root=model_root(
            source.config, kv_dtype=spec.engine.kv_dtype, quantization=spec.settings.quantization
        ),
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        num_blocks=config.num_blocks,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    longest_step_s = SLOWER_THAN_WARM_UP * reports.seconds.get("warm-up", 0.0)
    watchdog_s = max(spec.settings.watchdog_s, longest_step_s)
    return LoadedEngine(core, hello, watchdog_s, dict(reports.seconds))


def _check_revision(spec: ClusterSpec, source: ModelSource) -> None:
    """Raises ModelError if the files are not those that the launcher saw: no version comes in unasked."""
    if spec.revision not in (None, source.config.revision):
        raise ModelError(
            f"the files of {spec.settings.model} are revision {source.config.revision[:12]}, "
            f"not {spec.revision[:12]} as when this version was started",
            "put the files of then back, or roll the new ones out: headrace rollout --revision …",
        )


def _ask_golden(spec: ClusterSpec, source: ModelSource, executor: Executor) -> str:
    """What to show beside the stage. Raises ModelError for an answer that is not good.

    The scheduler is one of its own: of the answers nothing is cached, counted or held.
    """
    config, prompts = spec.engine.config, spec.golden or BUILT_IN
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=source.config.eos_token_ids)
    is_exact = spec.settings.deterministic or source.tape is not None
    check = GoldenCheck(
        EngineCore(scheduler, executor, time.monotonic),
        source.tokenizer(),
        config,
        near_tie=0.0 if is_exact else NEAR_TIE[spec.engine.dtype],
    )
    num_near_ties = check.check(prompts)
    return f"{len(prompts)} prompt(s), {num_near_ties} near tie(s)"


def _explain(error: Exception) -> tuple[str, str]:
    """What went wrong in one line, and the remedy."""
    if isinstance(error, ModelError):
        return error.message, error.remedy
    if isinstance(error, MemoryError) or "alloc" in str(error).lower():
        return "out of memory while loading", "lower --kv-memory or --replicas"
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first}"[:300], "see the replica's log in <state-dir>/run/ray"
