"""GGUF files: RoPE in llama.cpp's terms, and one clear line for each file that cannot be served."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.config import ModelConfig, RopeConfig
from engine.loading.gguf_file import GgufFile
from engine.loading.gguf_model import GgufModel
from engine.loading.source import ModelError, resolve_model
from tests.builders_gguf import write_gguf
from tests.builders_loading import refusal
from tests.builders_model import write_tiny_gguf
from tests.data.families.families import FAMILIES, weights


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def gguf(tiny_file: Path) -> bytes:
    return tiny_file.read_bytes()


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + b"x" * 100)
    assert "is not a GGUF file" in refusal(path)
    path.write_bytes(b"")
    assert "is not a GGUF file" in refusal(path)


@pytest.mark.parametrize("kept", [4, 20, 24, 100, 3000, -1, -5000])
def test_a_truncated_gguf(tmp_path: Path, gguf: bytes, kept: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf[:kept])
    assert "corrupt or truncated GGUF" in refusal(path)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (4, struct.pack("<I", 99), "version 99"),
        (8, struct.pack("<Q", 2**40), "tensor count"),
        (16, struct.pack("<Q", 2**63), "metadata count"),
        (24, struct.pack("<Q", 2**62), "bytes announced"),
    ],
)
def test_counts_that_the_file_cannot_hold(
    tmp_path: Path, gguf: bytes, offset: int, value: bytes, message: str
) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(gguf[:offset] + value + gguf[offset + len(value) :])
    assert message in refusal(path)


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, gguf: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    damaged = bytearray(gguf)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(4, 8000))
        damaged[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8))
    path.write_bytes(damaged)
    with suppress(ModelError):
        source = resolve_model(str(path))
        source.tokenizer()
        for _, weight in source.weights():
            assert weight.dtype == np.float32


@pytest.mark.parametrize(
    ("built", "message"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is not supported: supported: llama"),
        ({"without": ["blk.1.ffn_up.weight"]}, "tensor 'model.layers.1.mlp.up_proj.weight' is missing"),
        ({"without": ["token_embd.weight"]}, "tensor 'token_embd.weight' is missing"),
        ({"tensor_type": GGMLQuantizationType.Q5_0}, "has type Q5_0, which is not supported"),
        ({"edit": lambda w: w.add_head_count(0)}, "llama.attention.head_count is 0, not a positive integer"),
        ({"edit": lambda w: w.add_block_count(7)}, "7 layers announced"),
        (
            {"edit": lambda w: w.add_feed_forward_length(96)},
            "'model.layers.0.mlp.gate_proj.weight' has shape",
        ),
        ({"edit": lambda w: w.add_rope_dimension_count(4)}, "RoPE over 4 of 8 dimensions"),
        (
            {
                "edit": lambda w: (
                    w.add_string("llama.rope.scaling.type", "yarn"),
                    w.add_rope_scaling_factor(4.0),
                )
            },
            "RoPE scaling 'yarn' does not state its original_max_position_embeddings",
        ),
    ],
)
def test_a_gguf_that_is_no_model_of_ours(tmp_path: Path, built: dict[str, Any], message: str) -> None:
    assert message in refusal(write_tiny_gguf(tmp_path / "tiny.gguf", **built))


def config_with(tmp_path: Path, **metadata: Any) -> ModelConfig:
    """The tiny model with keys of `llama.` set; two underscores stand for a full stop."""

    def edit(writer: GGUFWriter) -> None:
        for key, value in metadata.items():
            writer.add_key_value(f"llama.{key.replace('__', '.')}", value, _type_of(value))

    return resolve_model(str(write_tiny_gguf(tmp_path / "tiny.gguf", edit=edit))).config


def _type_of(value: object) -> GGUFValueType:
    return {str: GGUFValueType.STRING, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}[type(value)]


def test_a_factor_without_a_type_means_linear(tmp_path: Path) -> None:
    expected = RopeConfig(1000.0, "linear", 4.0, (4.0,) * 4)
    assert config_with(tmp_path, rope__scaling__factor=4.0).rope == expected
    assert config_with(tmp_path, rope__scale_linear=4.0).rope == expected
    assert config_with(tmp_path, rope__scaling__factor=4.0, rope__scale_linear=4.0).rope == expected
    assert config_with(tmp_path, rope__scaling__type="none", rope__scaling__factor=4.0).rope == RopeConfig(
        1e3
    )


def test_yarn_multiplies_its_attention_by_the_files_factor(tmp_path: Path) -> None:
    stated: dict[str, Any] = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 128,
    }
    config = config_with(tmp_path, **stated)
    assert (config.max_model_len, config.rope.scaling) == (512, "yarn")
    assert config.rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    told = config_with(tmp_path, **stated, rope__scaling__attn_factor=0.5)
    assert told.rope.attention_factor == config.rope.attention_factor / 2
    other = config_with(tmp_path, **stated, rope__scaling__yarn_beta_slow=8.0)
    assert other.rope.divisors != config.rope.divisors


def test_a_tensor_of_divisors_is_llama_3s_scaling(tmp_path: Path) -> None:
    divisors = np.array([1.0, 1.5, 7.25, 8.0], np.float32)
    file = write_tiny_gguf(
        tmp_path / "tiny.gguf", edit=lambda writer: writer.add_tensor("rope_freqs.weight", divisors)
    )
    source = resolve_model(str(file))
    assert source.config.rope == RopeConfig(1000.0, "llama3", 8.0, (1.0, 1.5, 7.25, 8.0))
    assert "rope_freqs.weight" not in dict(source.weights())


def test_a_window_in_the_file_is_kept(tmp_path: Path) -> None:
    assert config_with(tmp_path, attention__sliding_window=64).sliding_window == 64


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"rope__freq_base": math.nan}, "$.rope_theta"),
        ({"rope__freq_base": math.inf}, "$.rope_theta"),
        ({"rope__freq_base": 0.0}, "$.rope_theta"),
        ({"rope__freq_base": -5.0}, "$.rope_theta"),
        ({"rope__freq_base": "big"}, "llama.rope.freq_base is 'big', not a number"),
        ({"rope__scaling__factor": 0.0}, "$.factor"),
        ({"rope__scaling__type": "longrope"}, "RoPE scaling 'longrope'"),
        ({"rope__scaling__type": 3}, "llama.rope.scaling.type is 3, not text"),
        ({"rope__scaling__yarn_ext_factor": 0.5}, "rope.scaling.yarn_ext_factor 0.5 is not supported"),
        ({"rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"rope__scaling__attn_factor": -1.0}, "llama.rope.scaling.attn_factor is -1.0, not a positive"),
        ({"rope__scaling__attn_factor": 1e-30}, "RoPE attention factor 1e-30 is not from 1e-06 to"),
        ({"rope__scaling__attn_factor": 3e38}, "RoPE attention factor 3e+38 is not from 1e-06 to"),
        (
            {"rope__scaling__factor": 4.0, "rope__scale_linear": 2.0},
            "rope.scaling.factor 4.0 and rope.scale_linear 2.0 contradict each other",
        ),
        ({"attention__head_count_kv": 3}, "4 query heads cannot share 3 key heads evenly"),
        ({"attention__head_count_kv": 0}, "head_count_kv is 0, not a positive integer"),
        ({"attention__key_length": 7}, "a head has 7 dimensions"),
        ({"attention__key_length": 2**30}, "a head has 1073741824 dimensions"),
        ({"attention__layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon is nan"),
        ({"attention__sliding_window": 0}, "sliding_window is 0"),
        ({"context_length": 0}, "llama.context_length is 0"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused_by_its_key(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        config_with(tmp_path, **metadata)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("divisors", "message"),
    [
        (np.ones(3, np.float32), "'rope_freqs.weight' has shape (3,), expected (4,)"),
        *(
            (np.array([1, number, 1, 1], np.float32), "holds numbers that are not from 1e-06 to 1000000000.0")
            for number in (0.0, -1.0, 1e-45, 3e38, math.nan, math.inf)
        ),
    ],
)
def test_divisors_that_make_no_sense_are_refused(
    tmp_path: Path, divisors: np.ndarray[Any, Any], message: str
) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", divisors)

    assert message in refusal(write_tiny_gguf(tmp_path / "tiny.gguf", edit=edit))


def test_divisors_beside_another_scaling_are_refused(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
        writer.add_rope_scaling_factor(4.0)

    message = "RoPE scaling 'linear' stands beside a tensor 'rope_freqs.weight'"
    assert message in refusal(write_tiny_gguf(tmp_path / "tiny.gguf", edit=edit))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_qwen_without_its_base_is_refused(tmp_path: Path, family: str) -> None:
    config = FAMILIES[family] | {"rope_theta": None, "rope_parameters": None}
    file = write_gguf(tmp_path / "model.gguf", config, weights(FAMILIES[family]))
    assert "the RoPE base (rope_theta) is not stated" in refusal(file)


@pytest.mark.parametrize(
    ("family", "without", "message"),
    [
        ("qwen2", "blk.1.attn_k.bias", "'model.layers.1.self_attn.k_proj.bias' is missing"),
        ("qwen3", "blk.0.attn_q_norm.weight", "'model.layers.0.self_attn.q_norm.weight' is missing"),
    ],
)
def test_what_a_family_adds_must_be_there(tmp_path: Path, family: str, without: str, message: str) -> None:
    config = FAMILIES[family]
    assert message in refusal(write_gguf(tmp_path / "m.gguf", config, weights(config), without=[without]))


def test_what_a_family_does_not_have_must_not_be_there(tmp_path: Path) -> None:
    config = FAMILIES["llama"]
    biased = weights(config) | {"model.layers.0.self_attn.q_proj.bias": np.ones(24, np.float32)}
    message = "tensor 'model.layers.0.self_attn.q_proj.bias' is not part of a llama model"
    assert message in refusal(write_gguf(tmp_path / "m.gguf", config, biased))


KEYS = [
    "general.architecture",
    "general.alignment",
    *(
        f"llama.{key}"
        for key in (
            "block_count",
            "context_length",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "attention.layer_norm_rms_epsilon",
            "attention.sliding_window",
            "rope.dimension_count",
            "rope.freq_base",
            "rope.scale_linear",
            "rope.scaling.type",
            "rope.scaling.factor",
            "rope.scaling.attn_factor",
            "rope.scaling.original_context_length",
            "rope.scaling.yarn_ext_factor",
            "rope.scaling.yarn_beta_fast",
        )
    ),
    *(
        f"tokenizer.ggml.{key}"
        for key in (
            "model",
            "pre",
            "tokens",
            "token_type",
            "merges",
            "scores",
            "bos_token_id",
            "eos_token_id",
            "eot_token_id",
            "add_bos_token",
            "add_space_prefix",
        )
    ),
    "tokenizer.chat_template",
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, 3, 8, 64, -1, 2**31 - 1, 2**31, 2**63, -(2**63)]),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e30, -1.0, math.nan, math.inf, -math.inf]),
    st.sampled_from(["", "llama", "qwen2", "gpt2", "yarn", "linear", "x" * 5000, "\udcff", "a\nb\0"]),
    st.lists(st.sampled_from(["", "a", " ", "a b", "\udcff", "x" * 300]), max_size=4),
    st.sampled_from([np.zeros(0), np.zeros(290, np.int32), np.full(290, math.nan), np.arange(290)]),
)


@settings(max_examples=400)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@example(changes={"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": np.zeros(290)})
def test_any_metadata_is_refused_in_one_line_or_harmless(tiny_file: Path, changes: dict[str, Any]) -> None:
    file = GgufFile.open(tiny_file)
    file.metadata.update({key: value for key, value in changes.items() if value is not None})
    for key in [key for key, value in changes.items() if value is None]:
        file.metadata.pop(key, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GgufFile, "open", lambda path: file)
        assert _told(tiny_file).isprintable()  # one line, and fit for a terminal


def _told(path: Path) -> str:
    try:
        model = GgufModel(path)
        model.tokenizer().encode("hello")
        model.chat_template()
    except ModelError as error:
        return str(error)
    return ""
