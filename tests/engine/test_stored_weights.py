"""Files that are quantised already: their own numbers, exactly, as GGUF, GPTQ and AWQ hold them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from safetensors.numpy import load_file, save_file

from engine.attention_backend import QuantizedWeight, quant_layout
from engine.loading.quantized_folder import QuantizedProjections, read_quantization
from engine.loading.safetensors_file import SafetensorsFile
from engine.loading.source import ModelError, ModelSource, resolve_model
from engine.loading.stored_weight import StoredWeight
from engine.models.weight import loaded_weight
from tests.builders_gguf import Array, random_blocks, write_gguf
from tests.builders_loading import edit_config, refusal
from tests.builders_model import TINY
from tests.data.families.families import FAMILIES, weights
from tests.data.quantized.make_quantized import KINDS

QUANTIZED = Path(__file__).parents[1] / "data" / "quantized"
GROUPS = {"Q8_0": (8, 32), "Q4_0": (4, 32), "Q4_1": (4, 32), "Q4_K": (4, 32)}
Kind = GGMLQuantizationType
CONFIG = FAMILIES["llama"] | {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Tensors of a few thousand numbers: a second thread only waits for the first."""
    torch.set_num_threads(1)


def kept(array: Any) -> QuantizedWeight:
    weight = loaded_weight("x_proj.weight", array, "stored", dtype=torch.float32, device=torch.device("cpu"))
    assert isinstance(weight, QuantizedWeight)
    return weight


def write(path: Path, kind: Kind) -> ModelSource:
    random = np.random.default_rng(8)
    tensors = {name: stored(array, kind, random) for name, array in weights(CONFIG).items()}
    return resolve_model(str(write_gguf(path, CONFIG, tensors, tensor_type=kind)))


def stored(weight: Array, kind: Kind, random: np.random.Generator) -> Array:
    if weight.ndim == 1:
        return weight
    if kind.name.endswith("_K"):
        return random_blocks((weight.shape[0], weight.shape[1]), kind, random)
    return np.ascontiguousarray(quantize(weight, kind)).view(np.uint8).reshape(len(weight), -1)


# --- GGUF -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPS)
def test_a_gguf_weight_as_stored_is_bit_for_bit_the_dequantised_one(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "m.gguf", Kind[name])
    assert source.is_quantized
    dense, num_kept = dict(source.weights()), 0
    for tensor, array in source.weights(as_stored=True):
        if not isinstance(array, StoredWeight):
            assert np.array_equal(array, dense[tensor])
            continue
        num_kept += 1
        weight = kept(array)
        assert (weight.num_bits, weight.group_size) == GROUPS[name]
        assert torch.equal(weight.dequantize(torch.float32), torch.tensor(dense[tensor]))
        assert np.array_equal(array.dequantize(), dense[tensor])
    assert num_kept == 2 * 7


def test_embedding_and_norms_are_dequantised(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", Kind.Q8_0)
    found = {name for name, array in source.weights(as_stored=True) if isinstance(array, StoredWeight)}
    assert {name.rpartition(".")[0][-5:] for name in found} == {"_proj"}


@pytest.mark.parametrize("name", ["F16", "Q6_K"])
def test_types_of_other_groups_are_dequantised(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "m.gguf", Kind[name])
    assert not source.is_quantized
    assert not any(isinstance(array, StoredWeight) for _, array in source.weights(as_stored=True))


# --- GPTQ and AWQ -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_file_is_what_was_dequantised_weight_by_weight(kind: str) -> None:
    source = resolve_model(str(QUANTIZED / kind))
    found, expected = dict(source.weights()), np.load(QUANTIZED / kind / "dequantized.npz")
    assert len(expected.files) == 7
    for name in expected.files:
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], expected[name]), name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gptq_act_order"])
def test_a_packed_file_as_stored_is_bit_for_bit_the_dequantised_one(kind: str) -> None:
    source = resolve_model(str(QUANTIZED / kind))
    assert source.is_quantized
    expected = np.load(QUANTIZED / kind / "dequantized.npz")
    found = dict(source.weights(as_stored=True))
    for name in expected.files:
        weight = kept(found[name])
        assert (weight.num_bits, weight.group_size) == (4, 32)
        assert (weight.offsets is None) == (kind == "gptq_sym")
        assert np.array_equal(weight.dequantize(torch.float32).numpy(), expected[name]), name


def test_act_order_is_dequantised_and_cannot_stay() -> None:
    assert not resolve_model(str(QUANTIZED / "gptq_act_order")).is_quantized


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the GPTQ model to break."""
    return Path(shutil.copytree(QUANTIZED / "gptq", tmp_path / "gptq"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not supported"),
        ({"quant_method": ...}, "quant_method None is not supported"),
        ({"bits": 8}, "bits 8 is not supported"),
        ({"bits": "four"}, "quantization_config: Expected `int`"),
        ({"group_size": 16}, "group_size 16 is not supported"),
        ({"group_size": 64}, "has shape"),
        ({"lm_head": True}, "lm_head True is not supported"),
        ({"dynamic": {"-:.*": {}}}, "dynamic"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        ({"quant_method": "awq"}, "has shape"),
        ({"quant_method": "awq", "version": "gemv"}, "version 'gemv' is not supported"),
        ({"quant_method": "awq", "zero_point": False}, "zero_point False is not supported"),
    ],
)
def test_what_is_not_built_is_refused_by_name(folder: Path, changes: dict[str, Any], message: str) -> None:
    path = folder / "config.json"
    stated = json.loads(path.read_text())
    changed = stated["quantization_config"] | changes
    stated["quantization_config"] = {key: value for key, value in changed.items() if value is not ...}
    path.write_text(json.dumps(stated))
    assert message in refusal(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tensors: {"x.scales": tensors.pop("x.scales")[:1]}, "scales' has shape"),
        (lambda tensors: {"x.qzeros": tensors.pop("x.qzeros").astype(np.float32)}, "has type F32"),
        (lambda tensors: {"x.qweight": tensors["x.qweight"].reshape(-1)}, "expected two dimensions"),
        (lambda tensors: {"x.g_idx": tensors["x.g_idx"] + 1}, "names groups beyond the 2"),
        (lambda tensors: {"x.g_idx": tensors["x.g_idx"][:-1]}, "g_idx' has shape"),
        (lambda tensors: {"x.bias": tensors["x.bias"] + 1}, "bias' is not part of a llama model"),
        (lambda tensors: {"y": np.zeros(3, np.int32)}, "has type I32"),
        (lambda tensors: {"x.weight": np.ones((64, 64), np.float16)}, "q_proj.weight' is there twice"),
        (lambda tensors: {"x.qweight": tensors["x.qweight"][:, :20]}, "20 outputs, no multiple of 8"),
    ],
)
def test_parts_that_do_not_fit_are_named(folder: Path, edit: Any, message: str) -> None:
    path, stem = folder / "model.safetensors", "model.layers.0.self_attn.q_proj"
    tensors = load_file(path)
    short = {name.replace(stem, "x"): tensor for name, tensor in tensors.items() if stem in name}
    changed = {name.replace("x", stem, 1): tensor for name, tensor in edit(short).items()}
    save_file(tensors | changed, path)
    assert message in refusal(folder)


def test_a_bias_that_the_family_has_is_kept_though_it_is_zero(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(QUANTIZED / "gptq", tmp_path / "gptq"))
    edit_config(folder, architectures=["Qwen2ForCausalLM"])
    tensors = load_file(folder / "model.safetensors")
    for name, size in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32), ("o_proj", 64)):
        tensors[f"model.layers.0.self_attn.{name}.bias"] = np.zeros(size, np.float16)
    save_file(tensors, folder / "model.safetensors")
    found = {name for name, _ in resolve_model(str(folder)).weights() if name.endswith(".bias")}
    assert found == {f"model.layers.0.self_attn.{name}_proj.bias" for name in "qkv"}


def test_rows_of_an_odd_length_cannot_stay_in_4_bits() -> None:
    shapes = {"x.qweight": (63, 8), "x.qzeros": (1, 8), "x.scales": (1, 64)}
    dtypes = {"x.qweight": "I32", "x.qzeros": "I32", "x.scales": "F16"}
    weights: Any = SimpleNamespace(shapes=lambda: shapes, dtypes=lambda: dtypes)
    config = read_quantization(KINDS["awq"] | {"group_size": -1})
    assert not QuantizedProjections(config, weights).can_stay
    shapes["x.qweight"] = (64, 8)
    assert QuantizedProjections(config, weights).can_stay


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("quantization", ["int8", "int4", "stored"])
def test_numbers_that_are_not_finite_are_refused_by_the_tensor_s_name(
    value: float, quantization: Any
) -> None:
    """One request after another would fail on them."""
    name, scales = "model.layers.0.mlp.up_proj.weight", np.full((4, 2), value, np.float32)
    array: Any = np.full((4, 64), value, np.float32)
    if quantization == "stored":
        array = StoredWeight(np.ones((4, 64), np.uint8), scales, None, num_bits=4)
    with pytest.raises(ModelError, match=r"tensor 'model.layers.0.mlp.up_proj.weight': .*not finite"):
        loaded_weight(name, array, quantization, dtype=torch.float32, device=torch.device("cpu"))


def test_words_are_refused_in_a_folder_that_says_nothing_of_them(folder: Path) -> None:
    path = folder / "config.json"
    stated = json.loads(path.read_text())
    del stated["quantization_config"]
    path.write_text(json.dumps(stated))
    assert "has type I32, which is not supported" in refusal(folder)


def test_a_swapped_nibble_is_another_weight() -> None:
    """What the comparisons above rest on."""
    (array,) = (
        array
        for name, array in resolve_model(str(QUANTIZED / "awq")).weights(as_stored=True)
        if name.endswith("q_proj.weight")
    )
    weight = kept(array)
    swapped = QuantizedWeight(
        (weight.values << 4) | (weight.values >> 4), weight.scales, weight.offsets, 32, 4
    )
    assert not torch.equal(weight.dequantize(torch.float32), swapped.dequantize(torch.float32))
    assert torch.equal(quant_layout.unpack_int4(weight.values), torch.tensor(array.numbers))


def test_a_plain_folder_that_says_it_is_quantised_is_refused() -> None:
    plain, config = SafetensorsFile.open(TINY / "model.safetensors"), read_quantization(KINDS["awq"])
    with pytest.raises(ModelError, match="no tensor of the folder is quantised"):
        QuantizedProjections(config, plain)
