"""`--quantization`: what is rounded at load, what it computes, and what a model cannot have."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention_backend import QuantizedWeight, attention_backend, quant_layout
from engine.block_hash import model_root
from engine.build import build_executor
from engine.config import EngineConfig
from engine.loading.errors import ModelError
from engine.loading.source import ModelSource, resolve_model
from engine.models.decoder import DecoderWeights, load_weights
from engine.models.weight import stacked
from engine.quantization import Quantization, check_quantization, int4_group
from engine.torch_executor import TorchExecutor
from kernels.cpu_quant import PackedInt8
from tests.builders import make_request
from tests.builders_model import answers, make_torch_core, tiny_source

CPU = torch.device("cpu")
QUANTIZED = Path(__file__).parents[1] / "data" / "quantized"
Q, K, V = (f"model.layers.0.self_attn.{which}_proj.weight" for which in "qkv")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Tensors of a few thousand numbers: a second thread only waits for the first."""
    torch.set_num_threads(1)


def loaded(
    source: ModelSource, quantization: Quantization, dtype: torch.dtype = torch.float32, **how: Any
) -> DecoderWeights:
    arrays = source.weights(as_stored=quantization == "stored")
    return load_weights(source.config, arrays, dtype=dtype, device=CPU, quantization=quantization, **how)


def as_quantized(source: ModelSource, quantization: Quantization) -> DecoderWeights:
    """Nothing is prepared: what a GPU keeps."""
    return loaded(source, quantization, prepare=lambda weight: weight)


def executor(quantization: Quantization, source: ModelSource | None = None, **how: Any) -> TorchExecutor:
    given = {"device": "cpu", "dtype": "float32", "num_threads": 1} | how
    return TorchExecutor(source or tiny_source(), quantization=quantization, **given)


# --- what is rounded --------------------------------------------------------------------------


@pytest.mark.parametrize(("quantization", "bits", "group"), [("int8", 8, None), ("int4", 4, 32)])
def test_projections_are_rounded_and_nothing_else(quantization: Any, bits: int, group: int | None) -> None:
    weights = as_quantized(tiny_source(), quantization)
    dense = loaded(tiny_source(), "none")
    for layer in weights.layers:
        for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down):
            assert isinstance(matrix, QuantizedWeight)
            wanted = group or matrix.shape[1]
            assert (matrix.num_bits, matrix.group_size) == (
                bits,
                64 if wanted == 32 < matrix.shape[1] else wanted,
            )
    assert torch.equal(weights.embedding, dense.embedding)
    assert torch.equal(weights.lm_head, dense.lm_head)
    assert torch.equal(weights.layers[0].input_norm, dense.layers[0].input_norm)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_row_is_rounded_as_it_is_alone(quantization: Any) -> None:
    """q, k and v as one matrix: no scale is shared between them."""
    arrays = dict(tiny_source().weights())
    qkv = as_quantized(tiny_source(), quantization).layers[0].qkv
    assert isinstance(qkv, QuantizedWeight)
    alone = {
        "int8": quant_layout.quantize_int8,
        "int4": lambda weight: quant_layout.quantize_int4(weight, 32),
    }
    parts = [alone[quantization](torch.tensor(arrays[name])) for name in (Q, K, V)]
    expected = torch.cat([part.dequantize(torch.float32) for part in parts])
    assert torch.equal(qkv.dequantize(torch.float32), expected)


def test_without_a_backend_s_choice_weights_are_what_the_numbers_stand_for() -> None:
    kept, dense = as_quantized(tiny_source(), "int8"), loaded(tiny_source(), "int8")
    assert isinstance(kept.layers[0].down, QuantizedWeight)
    assert torch.equal(dense.layers[0].down, kept.layers[0].down.dequantize(torch.float32))


def test_parts_of_different_formats_become_one_dense_matrix() -> None:
    weight = torch.randn(4, 64)
    int8, int4 = quant_layout.quantize_int8(weight), quant_layout.quantize_int4(weight)
    assert isinstance(stacked([int8, int8], torch.float32), QuantizedWeight)
    for parts in ([int8, int4], [int8, weight]):
        found = stacked(parts, torch.float32)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found[:4], int8.dequantize(torch.float32))


def test_loading_holds_the_result_and_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array is let go before the next is taken."""
    source, alive = tiny_source(), []

    def one_by_one() -> Any:
        for name, array in source.weights():
            copy = np.array(array)
            alive.append(sum(1 for other in handed if other() is not None))
            handed.append(weakref.ref(copy))
            yield name, copy
            del copy

    handed: list[Any] = []
    gc.disable()
    try:
        load_weights(source.config, one_by_one(), dtype=torch.bfloat16, device=CPU, quantization="int8")
    finally:
        gc.enable()
    assert max(alive) <= 1


# --- what it computes -------------------------------------------------------------------------


def greedy(model: TorchExecutor, source: ModelSource | None = None) -> list[list[int]]:
    source = source or tiny_source()
    requests = [
        make_request(f"r{i}", range(3 + i, 40 + i), max_tokens=8, ignore_eos=True, block_size=16)
        for i in range(3)
    ]
    return answers(make_torch_core(source, dtype="float32", executor=model, num_blocks=40), requests)


@pytest.mark.parametrize("kind", ["gptq", "awq"])
def test_a_file_as_stored_answers_as_its_dequantised_self(kind: str) -> None:
    source = resolve_model(str(QUANTIZED / kind))
    assert greedy(executor("stored", source), source) == greedy(executor("none", source), source)


def logits(model: TorchExecutor) -> torch.Tensor:
    model.allocate_kv(8)
    return model.logits(range(5, 60))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_model_computes_with_the_rounded_weights(
    quantization: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = logits(executor(quantization))
    kept = as_quantized(tiny_source(), quantization)
    dense = replace(
        kept,
        layers=tuple(
            replace(
                layer,
                **{
                    name: getattr(layer, name).dequantize(torch.float32)
                    for name in ("qkv", "output", "gate_up", "down")
                },
            )
            for layer in kept.layers
        ),
    )
    monkeypatch.setattr("engine.torch_executor.load_weights", lambda *args, **how: dense)
    assert torch.allclose(found, logits(executor("none")), atol=1e-3)
    monkeypatch.undo()
    assert not torch.allclose(found, logits(executor("none")), atol=1e-2)


def test_reference_mode_dequantises_at_load_and_is_exact() -> None:
    model = executor("int8", deterministic=True)
    assert isinstance(model._model._weights.layers[0].down, torch.Tensor)
    model.allocate_kv(8)
    whole = model.logits(range(5, 60))
    assert torch.equal(model.logits(range(5, 30)), whole[:25])


@pytest.mark.parametrize(("max_num_seqs", "packed"), [(8, True), (9, False)])
def test_the_seats_of_an_engine_choose_the_form(max_num_seqs: int, packed: bool) -> None:
    config = EngineConfig(num_blocks=20, max_model_len=64, max_num_seqs=max_num_seqs)
    built = build_executor(
        tiny_source(), config, dtype="bfloat16", device="cpu", num_threads=1, quantization="int8"
    )
    assert isinstance(built, TorchExecutor)
    assert isinstance(built._model._weights.layers[0].down, PackedInt8) is packed


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_every_backend_multiplies_by_quantised_weights(name: Any, is_deterministic: bool) -> None:
    backend = attention_backend(CPU, "auto" if is_deterministic else name, is_deterministic=is_deterministic)
    weight, x = quant_layout.quantize_int4(torch.randn(64, 64)), torch.randn(5, 64)
    expected = x @ weight.dequantize(torch.float32).T
    assert torch.allclose(backend.linear(x, weight), expected, atol=1e-4)
    assert torch.allclose(backend.linear(x, backend.prepare(weight, torch.float32, 4)), expected, atol=1e-4)


# --- what a model cannot have -----------------------------------------------------------------


def test_the_group_of_int4_is_the_first_that_divides() -> None:
    assert [int4_group(num_columns) for num_columns in (64, 576, 96, 32)] == [64, 64, 32, 32]
    with pytest.raises(ModelError, match="rows of 40 weights are no multiple of 32"):
        int4_group(40)


@pytest.mark.parametrize("field", ["hidden_size", "intermediate_size", "head_dim"])
def test_int4_of_odd_sizes_is_refused_before_anything_is_read(field: str) -> None:
    source = tiny_source()
    odd = SimpleNamespace(tape=None, config=replace(source.config, **{field: 10}), is_quantized=False)
    with pytest.raises(ModelError, match="no multiple of 32"):
        check_quantization("int4", odd)
    check_quantization("int8", odd)


def test_stored_needs_weights_that_are_quantised() -> None:
    with pytest.raises(ModelError, match="holds no quantised weights") as caught:
        executor("stored")
    assert caught.value.remedy == "use --quantization int8, int4 or none"
    with pytest.raises(ModelError, match="holds no quantised weights"):
        executor("stored", resolve_model(str(QUANTIZED / "gptq_act_order")))


@pytest.mark.parametrize("quantization", ["int8", "int4", "stored"])
def test_a_tape_has_no_weights_to_quantise(quantization: Quantization) -> None:
    tape = resolve_model("tape:")
    check_quantization("none", tape)
    with pytest.raises(ModelError, match="has no weights") as caught:
        check_quantization(quantization, tape)
    assert "--quantization" in caught.value.remedy


# --- whose KV it is ---------------------------------------------------------------------------


def test_kv_of_other_weights_has_another_root() -> None:
    config = tiny_source().config
    roots = [
        model_root(config, kv_dtype="float32", quantization=quantization)
        for quantization in ("none", "int8", "int4", "stored")
    ]
    assert len(set(roots)) == 4
    assert roots[0] == model_root(config, kv_dtype="float32")
