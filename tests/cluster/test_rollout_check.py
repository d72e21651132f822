"""What a new version must have in common with the one that serves, seen before anything is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.golden import GoldenPrompt
from cluster.preflight import open_model, plan_engine, replica_bytes
from cluster.rollout.check import Version, check_version, text_rules
from cluster.rollout.rollout import Order, Rollout
from cluster.settings import ServeSettings
from cluster.spec import ClusterSpec
from cluster.stages import StartError
from tests.builders_model import TINY


def serving(model: Path = TINY, golden: tuple[GoldenPrompt, ...] = ()) -> ClusterSpec:
    settings = ServeSettings(model=str(model), dtype="float32")
    source = open_model(settings)
    return ClusterSpec(
        settings=settings,
        engine=plan_engine(settings, source),
        served_name="served",
        redis_url="unix:///redis.sock",
        cluster_id="c",
        run_path=Path("/tmp/hr-0/abcdef"),
        threads_per_replica=1,
        revision=source.config.revision,
        golden=golden,
    )


def order(golden: tuple[GoldenPrompt, ...] = (), **asked: Any) -> Order:
    return Order(Rollout("ro-1", created_at=0.0, **asked), golden)


def check(spec: ClusterSpec, **asked: Any) -> Version:
    return check_version(order(**asked), spec, text_rules(open_model(spec.settings)))


def refusal(spec: ClusterSpec, **asked: Any) -> str:
    with pytest.raises(StartError) as error:
        check(spec, **asked)
    assert error.value.remedy
    return error.value.message


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The tiny model with other weights."""
    folder = tmp_path / "other"
    shutil.copytree(TINY, folder)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return folder


def edit(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_version_of_the_same_model_is_a_pool_of_its_own(other: Path) -> None:
    spec = serving()
    version = check(spec, model=str(other))
    made = version.spec
    assert (made.pool_id, made.served_name, made.cluster_id) == ("ro-1", "served", "c")
    assert made.settings.model == str(other)
    assert made.revision == open_model(made.settings).config.revision != spec.revision
    assert version.replica_bytes == replica_bytes(made.settings, open_model(made.settings), made.engine)


def test_a_revision_is_what_the_files_begin_with(other: Path) -> None:
    spec = serving(other)
    assert spec.revision is not None
    assert check(spec, revision=spec.revision[:8]).spec.revision == spec.revision
    assert refusal(spec, revision="0000").startswith(
        f"the files of {other} are revision {spec.revision[:12]}"
    )


def test_files_that_were_replaced_in_place_are_compared_with_those_of_then(other: Path) -> None:
    spec = serving(other)
    rules = text_rules(open_model(spec.settings))
    edit(other / "tokenizer_config.json", {"chat_template": "{{ messages[0].content }}!"})
    with pytest.raises(StartError, match="differs from the model that serves in its chat template"):
        check_version(order(model=str(other)), spec, rules)


def test_another_vocabulary_is_named() -> None:
    said = refusal(serving(), model="tape:")
    assert "in its vocabulary and its special tokens and its splitting and its chat template" in said


def test_the_same_tokens_with_other_merges_are_seen(other: Path) -> None:
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    assert tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert refusal(serving(), model=str(other)).endswith(
        "differs from the model that serves in its splitting"
    )


def test_a_shorter_context_is_refused(other: Path) -> None:
    edit(other / "config.json", {"max_position_embeddings": 64})
    assert "holds a context of 64 tokens, and clients were promised" in refusal(serving(), model=str(other))


def test_a_model_that_is_not_there_is_told_as_at_a_start() -> None:
    assert refusal(serving(), model="/none").startswith("--model /none: model '/none' was not found")


def test_golden_prompts_that_were_given_are_asked_and_else_the_old_ones_without_their_answers() -> None:
    spec = serving(golden=(GoldenPrompt(prompt="a", text="b"),))
    given = (GoldenPrompt(prompt_token_ids=[1], token_ids=[2]),)
    assert check(spec, model=str(TINY), golden=given).spec.golden == given
    assert check(spec, model=str(TINY)).spec.golden == (GoldenPrompt(prompt="a"),)
