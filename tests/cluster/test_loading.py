"""A replica's engine is built as its spec says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from cluster import loading
from cluster.loading import LoadedEngine, load_engine
from cluster.settings import FAULTS_ALLOWED, ServeSettings
from cluster.spec import ClusterSpec, EnginePlan
from engine.block_hash import model_root
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.request import SamplingParams, TokenLogprobs
from engine.torch_executor import TorchExecutor
from tests.builders import make_request, run_to_end
from tests.builders_model import TINY, make_torch_core, tiny_source


class NoReports:
    """Stages that nobody watches, and what each took."""

    current = "weights"
    seconds: ClassVar[dict[str, float]] = {}

    def __init__(self, *names: object) -> None: ...

    @contextmanager
    def stage(self, *names: object) -> Iterator[Callable[[str], None]]:
        yield lambda detail: None

    def push(self, report: object) -> None: ...

    def close(self) -> None: ...


def load(monkeypatch: pytest.MonkeyPatch, kv_dtype: str = "float32", **settings: Any) -> LoadedEngine:
    monkeypatch.setattr(loading, "StartReports", NoReports)
    spec = ClusterSpec(
        settings=ServeSettings(**{"model": str(TINY)} | settings),
        engine=EnginePlan(EngineConfig(num_blocks=20, max_model_len=100), "float32", kv_dtype),
        served_name="tiny",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        run_path=Path("/tmp/hr-0/abcdef"),
        threads_per_replica=1,
    )
    return load_engine(ClusterSpec.from_json(spec.to_json()), "replica")


def built(**choices: Any) -> EngineCore:
    """The tiny model's engine, built with these choices and no spec."""
    executor = TorchExecutor(tiny_source(), device="cpu", dtype="float32", num_threads=1, **choices)
    return make_torch_core(tiny_source(), dtype="float32", executor=executor)


def logprobs_of(core: EngineCore) -> list[TokenLogprobs]:
    """Of one greedy answer; computed in another way, they differ in their last bits."""
    sampling = SamplingParams(max_tokens=8, temperature=0.0, num_logprobs=20)
    core.add(msgspec.structs.replace(make_request("r", range(60), block_size=16), sampling=sampling))
    return [told for output in run_to_end(core)["r"] for told in output.logprobs or ()]


@pytest.mark.parametrize(("kv_dtype", "other"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_the_kv_dtype_reaches_the_cache_and_the_root_of_the_hashes(
    monkeypatch: pytest.MonkeyPatch, kv_dtype: str, other: str
) -> None:
    loaded = load(monkeypatch, kv_dtype)
    told = logprobs_of(loaded.core)
    assert told == logprobs_of(built(kv_dtype=kv_dtype))
    assert told != logprobs_of(built(kv_dtype=other))
    assert loaded.hello.hash_root == model_root(tiny_source().config, kv_dtype=kv_dtype)


@pytest.mark.parametrize("deterministic", [True, False])
def test_reference_mode_reaches_the_executor(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    told = logprobs_of(load(monkeypatch, deterministic=deterministic).core)
    assert told == logprobs_of(built(deterministic=deterministic))
    assert told != logprobs_of(built(deterministic=not deterministic))


@pytest.mark.parametrize(("fault", "error_code"), [("raise@0+", "engine_error"), (None, None)])
def test_a_fault_strikes_if_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, fault: str | None, error_code: str | None
) -> None:
    monkeypatch.setenv(FAULTS_ALLOWED, "1")
    core = load(monkeypatch, model="tape:", fault=fault).core
    core.add(make_request("r", 5, block_size=16))
    assert run_to_end(core)["r"][-1].error_code == error_code


@pytest.mark.parametrize(("warm_up_s", "watchdog_s"), [(0.4, 5.0), (19.0, 38.0)])
def test_a_step_as_long_as_the_warm_up_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch, warm_up_s: float, watchdog_s: float
) -> None:
    monkeypatch.setattr(NoReports, "seconds", {"warm-up": warm_up_s})
    assert load(monkeypatch).watchdog_s == watchdog_s
