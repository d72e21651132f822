"""A replica's engine is built as its spec says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from cluster import loading
from cluster.golden import GoldenPrompt
from cluster.index.block_news import BlockNews, Stored
from cluster.loading import LoadedEngine, load_engine
from cluster.settings import FAULTS_ALLOWED, ServeSettings
from cluster.spec import ClusterSpec, EnginePlan
from engine.block_events import NOBODY, BlockListener
from engine.block_hash import model_root
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading.source import ModelError
from engine.request import SamplingParams, TokenLogprobs
from engine.torch_executor import TorchExecutor
from tests.builders import make_request, run_to_end
from tests.builders_model import TINY, make_torch_core, tiny_answers, tiny_source


class NoReports:
    """Stages that nobody watches, and what each took."""

    current = "weights"
    seconds: Mapping[str, float] = MappingProxyType({})

    def __init__(self, *names: object) -> None: ...

    @contextmanager
    def stage(self, *names: object) -> Iterator[Callable[[str], None]]:
        yield lambda detail: None

    def passed(self, replica_id: str, name: str, seconds: float) -> None:
        self.seconds = {**self.seconds, name: seconds}

    def push(self, report: object) -> None: ...

    def close(self) -> None: ...


def load(
    monkeypatch: pytest.MonkeyPatch,
    kv_dtype: str = "float32",
    listener: BlockListener = NOBODY,
    golden: tuple[GoldenPrompt, ...] = (),
    revision: str | None = None,
    **settings: Any,
) -> LoadedEngine:
    monkeypatch.setattr(loading, "StartReports", NoReports)
    spec = ClusterSpec(
        settings=ServeSettings(**{"model": str(TINY)} | settings),
        engine=EnginePlan(EngineConfig(num_blocks=20, max_model_len=100), "float32", kv_dtype),
        served_name="tiny",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        run_path=Path("/tmp/hr-0/abcdef"),
        threads_per_replica=1,
        golden=golden,
        revision=revision,
    )
    return load_engine(ClusterSpec.from_json(spec.to_json()), "replica", listener)


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


def test_the_quantization_reaches_the_weights_and_the_root_of_the_hashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = load(monkeypatch, quantization="int8")
    told = logprobs_of(loaded.core)
    assert told == logprobs_of(built(quantization="int8"))
    assert told != logprobs_of(built())
    root = model_root(tiny_source().config, kv_dtype="float32", quantization="int8")
    assert loaded.hello.hash_root == root
    assert root != model_root(tiny_source().config, kv_dtype="float32")


def test_the_named_kernels_reach_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    told = logprobs_of(load(monkeypatch, attention_backend="reference").core)
    assert told == logprobs_of(built(backend="reference"))
    assert told != logprobs_of(built(backend="cpu"))


@pytest.mark.parametrize(("fault", "error_code"), [("raise@0+", "engine_error"), (None, None)])
def test_a_fault_strikes_if_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, fault: str | None, error_code: str | None
) -> None:
    monkeypatch.setenv(FAULTS_ALLOWED, "1")
    core = load(monkeypatch, model="tape:", fault=fault).core
    core.add(make_request("r", 5, block_size=16))
    assert run_to_end(core)["r"][-1].error_code == error_code


def test_what_becomes_of_blocks_is_told_from_the_first_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    news = BlockNews()
    core = load(monkeypatch, model="tape:", listener=news).core
    assert news.take() == []
    request = make_request("r", 80, block_size=16)
    core.add(request)
    run_to_end(core)
    assert news.take() == [Stored(request.hash_root, request.block_hashes[3])]


@pytest.mark.parametrize(("warm_up_s", "watchdog_s"), [(0.4, 5.0), (19.0, 38.0)])
def test_a_step_as_long_as_the_warm_up_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch, warm_up_s: float, watchdog_s: float
) -> None:
    monkeypatch.setattr(NoReports, "seconds", {"warm-up": warm_up_s})
    assert load(monkeypatch).watchdog_s == watchdog_s


def test_the_life_of_the_process_until_then_is_a_stage_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < load(monkeypatch).start_seconds["import"] < 3600


def test_golden_answers_are_the_model_s_own_and_leave_the_engine_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    news = BlockNews()
    counters = load(monkeypatch, listener=news, golden=(GoldenPrompt(**tiny_answers()[0]),)).core.counters()
    assert counters == msgspec.structs.replace(built().counters(), blocks_total=counters.blocks_total)
    assert news.take() == []


def test_a_replica_that_answers_otherwise_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GoldenPrompt(**tiny_answers()[0])
    assert right.token_ids is not None
    wrong = right.model_copy(update={"token_ids": [*right.token_ids[:3], right.token_ids[3] + 1]})
    with pytest.raises(ModelError, match="golden prompt 2 got another answer than expected, from token 4"):
        load(monkeypatch, golden=(right, wrong))


def test_a_fault_that_was_asked_for_counts_steps_of_service_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULTS_ALLOWED, "1")
    core = load(monkeypatch, model="tape:", fault="raise@1").core
    core.add(make_request("r", 5, block_size=16))
    assert run_to_end(core)["r"][-1].error_code == "engine_error"


def test_files_that_the_launcher_did_not_see_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, revision=tiny_source().config.revision)
    with pytest.raises(ModelError, match="not 0123456789ab as when this version was started"):
        load(monkeypatch, revision="0123456789abcdef")
