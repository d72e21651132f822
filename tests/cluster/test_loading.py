"""A replica's engine is built as its spec says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster import loading
from cluster.loading import LoadedEngine, load_engine
from cluster.settings import FAULTS_ALLOWED, ServeSettings
from cluster.spec import ClusterSpec
from engine.block_hash import model_root
from engine.config import EngineConfig
from engine.faults import FaultyExecutor
from engine.torch_executor import TorchExecutor
from tests.builders import make_request, run_to_end
from tests.builders_model import TINY, tiny_source


class NoReports:
    """Stages that nobody watches."""

    current = "weights"

    def __init__(self, *names: object) -> None: ...

    @contextmanager
    def stage(self, *names: object) -> Iterator[Callable[[str], None]]:
        yield lambda detail: None

    def push(self, report: object) -> None: ...

    def close(self) -> None: ...


def load(monkeypatch: pytest.MonkeyPatch, dtype: str = "float32", **settings: Any) -> LoadedEngine:
    monkeypatch.setattr(loading, "StartReports", NoReports)
    spec = ClusterSpec(
        settings=ServeSettings(**{"model": str(TINY)} | settings),
        engine=EngineConfig(num_blocks=20, max_model_len=100),
        dtype=dtype,
        served_name="tiny",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        run_path=Path("/tmp/hr-0/abcdef"),
        threads_per_replica=1,
    )
    return load_engine(ClusterSpec.from_json(spec.to_json()), "replica")


@pytest.mark.parametrize(
    ("asked", "resolved"), [("auto", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")]
)
def test_the_kv_dtype_reaches_the_cache_and_the_root_of_the_hashes(
    monkeypatch: pytest.MonkeyPatch, asked: str, resolved: str
) -> None:
    loaded = load(monkeypatch, kv_cache_dtype=asked)
    executor = loaded.core._executor
    assert isinstance(executor, TorchExecutor)
    assert executor._kv.layers[0][0].dtype == getattr(torch, resolved)
    assert loaded.hello.hash_root == model_root(tiny_source().config, kv_dtype=resolved)


def test_reference_mode_reaches_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    for deterministic in (True, False):
        executor = load(monkeypatch, deterministic=deterministic).core._executor
        assert isinstance(executor, TorchExecutor)
        assert (type(executor._backend).__name__ == "DeterministicBackend") == deterministic


def test_a_fault_that_was_asked_for_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULTS_ALLOWED, "1")
    core = load(monkeypatch, model="tape:", fault="raise@0+").core
    assert isinstance(core._executor, FaultyExecutor)
    core.add(make_request("r", 5, block_size=16))
    outputs = run_to_end(core)
    assert [output.finish_reason for output in outputs["r"]] == ["error"]
