"""Hugging Face folders: what is read from them, and one clear line for each that cannot be served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import RopeConfig
from engine.kv_memory import usable_context
from engine.loading.source import ModelError, resolve_model
from tests.builders_loading import edit_config, refusal
from tests.builders_model import TINY
from tests.data.families.families import FAMILIES, weights, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported"),
        ({"hidden_size": ...}, "missing required field `hidden_size`"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers announced"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "RoPE scaling 'dynamic' (rope_theta 1000.0, fac",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "$.factor"),
        ({"rope_scaling": 5}, "$.rope_scaling"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": 1e999}, "config.json"),
        ({"partial_rotary_factor": 0.25}, "$.partial_rotary_factor"),
        ({"architectures": ["SmolLM3ForCausalLM"]}, "architecture 'SmolLM3ForCausalLM' is not supported"),
        ({"architectures": []}, "architecture '' is not supported: supported: LlamaForCausalLM, Mistral"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer type 'linear_attention'"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key heads evenly"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": ...}, "has shape"),
        ({"num_attention_heads": 64, "head_dim": ...}, "a head has 0 dimensions"),
        ({"head_dim": 2**30}, "a head has 1073741824 dimensions"),
        ({"rms_norm_eps": 0}, "$.rms_norm_eps"),
        ({"max_position_embeddings": 0}, "$.max_position_embeddings"),
        ({"sliding_window": -1}, "$.sliding_window"),
        ({"eos_token_id": -2}, "$.eos_token_id"),
        ({"vocab_size": 100}, "has shape"),
        ({"eos_token_id": 5000}, "token 5000 is outside"),
    ],
)
def test_a_folder_that_is_no_model_of_ours(folder: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refusal(edit_config(folder, **changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:5], "truncated safetensors"),
        (lambda data: data[:-1], "corrupt or truncated"),
        (lambda data: (2**50).to_bytes(8, "little") + data[8:], "header of 1125899906842624 bytes"),
        (lambda data: data.replace(b'"F32"', b'"I32"', 1), "has type I32"),
        (lambda data: data.replace(b'"shape":[', b'"shape":[9', 1), "is corrupt or truncated"),
        (lambda data: data[:8] + b"x" + data[9:], "corrupt safetensors header"),
    ],
)
def test_damaged_safetensors(folder: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert message in refusal(folder)


# --- Families ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("mistral", {}, 48),
        ("mistral", {"sliding_window": None}, None),
        ("llama", {"sliding_window": 32}, None),  # nothing in a Llama reads it
        ("qwen2", {}, None),
        ("qwen2", {"use_sliding_window": True}, 32),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, None),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 64}, 64),
        ("qwen3", {"use_sliding_window": True, "sliding_window": None}, None),
    ],
)
def test_the_context_is_trusted_up_to_the_window_of_any_layer(
    tmp_path: Path, family: str, changes: dict[str, Any], window: int | None
) -> None:
    config = resolve_model(str(write_folder(FAMILIES[family] | changes, tmp_path / "m"))).config
    assert config.sliding_window == window
    assert usable_context(config) == (window or 256)


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_only_a_llama_may_leave_its_base_unsaid(tmp_path: Path, family: str) -> None:
    silent = FAMILIES[family] | {"rope_theta": None, "rope_parameters": None}
    assert "the RoPE base (rope_theta) is not stated" in refusal(write_folder(silent, tmp_path / "silent"))
    assert resolve_model(str(write_folder(FAMILIES["llama"], tmp_path / "llama"))).config.rope.theta == 1e4


def test_where_the_base_is_read_from(folder: Path) -> None:
    def theta(**changes: Any) -> float:
        return resolve_model(str(edit_config(folder, **changes))).config.rope.theta

    assert theta(rope_theta=77.0) == 77.0
    assert theta(rope_theta=..., rope_parameters={"rope_theta": 88.0}) == 88.0
    assert theta(rope_theta=88.0, rope_parameters={"rope_theta": 88}) == 88.0
    assert theta(rope_theta=77.0, rope_scaling={"type": "default"}, rope_parameters=None) == 77.0


def test_an_original_context_beside_the_parameters_counts(folder: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0}
    edit_config(folder, rope_scaling=scaling, original_max_position_embeddings=128)
    assert resolve_model(str(folder)).config.max_model_len == 512


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
            "RoPE rope_theta 10000.0 and rope_parameters.rope_theta 500000.0 contradict each other",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_theta": 5e5}},
            "rope_theta 10000.0 and rope_scaling.rope_theta 500000.0",
        ),
        (
            {"rope_parameters": _YARN, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_parameters.rope_type 'yarn' and rope_scaling.type 'linear'",
        ),
        (
            {"rope_parameters": _YARN, "rope_scaling": _YARN | {"factor": 2.0}},
            "rope_parameters.factor 4.0 and rope_scaling.factor 2.0",
        ),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": _YARN},
            "rope_parameters.rope_type 'default' and rope_scaling.rope_type 'yarn'",
        ),
        (
            {"rope_scaling": _YARN | {"type": "linear"}},
            "rope_scaling.rope_type 'yarn' and rope_scaling.type 'linear'",
        ),
        (
            {"rope_scaling": _YARN, "original_max_position_embeddings": 128},
            "original_max_position_embeddings 128 and rope_scaling.original_max_position_embeddings 64",
        ),
        (
            {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor 1.0 and rope_parameters.partial_rotary_factor 0.5",
        ),
        ({"rope_scaling": {"factor": 4.0}}, "RoPE factor 4.0 is stated without a scaling that uses it"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in refusal(edit_config(folder, **changes))


def test_a_file_that_repeats_itself_is_taken(folder: Path) -> None:
    def rope(**changes: Any) -> RopeConfig:
        return resolve_model(str(edit_config(folder, **changes))).config.rope

    once = rope(rope_theta=5e5, rope_scaling=_YARN)
    repeated = _YARN | {"type": "yarn", "rope_theta": 5e5, "mscale": None}
    assert once.scaling == "yarn"
    assert rope(rope_parameters=repeated, original_max_position_embeddings=64) == once
    assert rope(rope_scaling=None) == once


def test_what_some_files_repeat_is_passed_over(tmp_path: Path) -> None:
    config = FAMILIES["qwen2"]
    repeated = weights(config) | {
        "lm_head.weight": weights(config)["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32),
    }
    source = resolve_model(str(write_folder(config, tmp_path / "m", repeated)))
    assert {name for name, _ in source.weights()} == weights(config).keys()


@settings(max_examples=300)
@given(
    changes=st.dictionaries(
        st.sampled_from([*FAMILIES["qwen2"], "rope_scaling", "rope_parameters", "layer_types", "head_dim"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**70), 2**70),
            st.sampled_from([0, 1, 2, 8, 10**9]),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(max_size=3),
            st.lists(st.sampled_from(["LlamaForCausalLM", "full_attention", 2, None]), max_size=2),
            st.dictionaries(
                st.sampled_from(["type", "rope_theta", "factor", "original_max_position_embeddings"]),
                st.sampled_from(["yarn", "linear", 0, 4.0, 1e308, None, [], 64]),
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_config_is_refused_in_one_line_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    if not folder.exists():
        write_folder(FAMILIES["qwen2"], folder)
    (folder / "config.json").write_text(json.dumps(FAMILIES["qwen2"] | changes))
    assert _told(folder).isprintable()


def _told(folder: Path) -> str:
    try:
        resolve_model(str(folder))
    except ModelError as error:
        return str(error)
    return ""
