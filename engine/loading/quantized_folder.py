"""The projections of a Hugging Face folder that was quantised by GPTQ or AWQ, under their plain names.

Only `(number - zero) · scale` in 4 bits is read. In GPTQ's act-order (`desc_act`) neighbours are of different
groups: such a file is dequantised, it cannot stay as it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from engine.loading import packed_int4
from engine.loading.errors import ModelError, shown
from engine.loading.packed_int4 import NUMBERS_IN_WORD
from engine.loading.safetensors_shards import Weights
from engine.loading.stored_weight import StoredWeight

GROUP_SIZES = (32, 64, 128)
"""Besides a whole row, which is written -1."""
_REMEDY = "give a folder of GPTQ or AWQ (gemm) weights of 4 bits, or one that is not quantised"
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


class QuantizationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`quantization_config` of `config.json`; what would change the answer and is not built is refused."""

    quant_method: str
    bits: int
    group_size: int
    desc_act: bool = False
    checkpoint_format: str = "gptq"
    version: str = "gemm"
    zero_point: bool = True
    lm_head: bool = False
    dynamic: dict[str, Any] | None = None

    @property
    def method(self) -> Literal["gptq", "awq"]:
        return "gptq" if self.quant_method == "gptq" else "awq"


def read_quantization(stated: Mapping[str, Any]) -> QuantizationConfig:
    """Raises ModelError."""
    if stated.get("quant_method") not in ("gptq", "awq"):
        raise _refused("quant_method", stated.get("quant_method"))
    try:
        config = msgspec.convert(stated, QuantizationConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"config.json: quantization_config: {error}", _REMEDY) from None
    built: dict[str, tuple[object, ...]] = {
        "bits": (4,),
        "group_size": (*GROUP_SIZES, -1),
        "lm_head": (False,),
        "dynamic": (None, {}),
    }
    if config.method == "gptq":
        built["checkpoint_format"] = ("gptq", "gptq_v2")
    else:
        built |= {"version": ("gemm", "GEMM"), "zero_point": (True,)}
    for name, values in built.items():
        if getattr(config, name) not in values:
            raise _refused(name, getattr(config, name))
    return config


def _refused(name: str, value: object) -> ModelError:
    return ModelError(f"config.json: quantization_config: {name} {shown(value)} is not supported", _REMEDY)


class QuantizedProjections:
    """Raises ModelError from the constructor for tensors that do not fit each other, never later."""

    def __init__(self, config: QuantizationConfig, weights: Weights) -> None:
        self._config = config
        self._weights = weights
        shapes, dtypes = weights.shapes(), weights.dtypes()
        stems = [name.removesuffix(".qweight") for name in shapes if name.endswith(".qweight")]
        if not stems:
            raise ModelError("no tensor of the folder is quantised, though config.json says so", _REMEDY)
        self._shapes = {f"{stem}.weight": self._shape(stem, shapes) for stem in stems}
        for name in self._shapes.keys() & shapes.keys():
            raise ModelError(f"tensor {name!r} is there twice: as it is, and quantised", _REMEDY)
        for name, dtype in dtypes.items():
            is_word = name.rpartition(".")[2] in ("qweight", "qzeros", "g_idx")
            if (dtype == "I32") != is_word:
                raise ModelError(f"tensor {name!r} has type {dtype}, which is not supported", _REMEDY)
        self._groups = {stem: self._act_order(stem, shapes) for stem in stems}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the plain weights."""
        return dict(self._shapes)

    def is_part(self, name: str) -> bool:
        """Whether a tensor of the file is one of these, or a bias of zeros beside it, as GPTQ writes them."""
        stem, _, part = name.rpartition(".")
        if f"{stem}.weight" not in self._shapes:
            return False
        return part in _PARTS or (part == "bias" and not self._weights.tensor(name).any())

    @property
    def can_stay(self) -> bool:
        """Two 4-bit numbers of a row share a byte, so its length must be even."""
        is_even = all(num_inputs % 2 == 0 for _, num_inputs in self._shapes.values())
        return is_even and all(groups is None for groups in self._groups.values())

    def stored(self, name: str) -> StoredWeight:
        return packed_int4.int4_weight(*self._parts(name.removesuffix(".weight")))

    def dequantized(self, name: str) -> npt.NDArray[np.float32]:
        stem = name.removesuffix(".weight")
        groups = self._groups[stem]
        parts = self._parts(stem)
        if groups is None:
            return packed_int4.int4_weight(*parts).dequantize()
        return packed_int4.gathered(*parts, groups)

    def _parts(self, stem: str) -> tuple[packed_int4.Numbers, packed_int4.Numbers, npt.NDArray[Any]]:
        """Numbers [N, K], zeros and scales [N, groups]."""
        qweight, qzeros = (self._weights.words(f"{stem}.{part}") for part in ("qweight", "qzeros"))
        scales = np.ascontiguousarray(self._weights.tensor(f"{stem}.scales").T)
        if self._config.method == "awq":
            return packed_int4.awq_numbers(qweight), packed_int4.awq_numbers(qzeros), scales
        zeros = packed_int4.gptq_zeros(qzeros, is_v1=self._config.checkpoint_format == "gptq")
        return packed_int4.gptq_numbers(qweight), zeros, scales

    def _shape(self, stem: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        """[N, K]"""
        rows, columns = _matrix(f"{stem}.qweight", shapes)
        is_gptq = self._config.method == "gptq"
        num_outputs, num_inputs = (
            (columns, rows * NUMBERS_IN_WORD) if is_gptq else (columns * NUMBERS_IN_WORD, rows)
        )
        if num_outputs % NUMBERS_IN_WORD:
            raise ModelError(
                f"tensor '{stem}.qweight' has {num_outputs} outputs, no multiple of {NUMBERS_IN_WORD}",
                _REMEDY,
            )
        group = num_inputs if self._config.group_size == -1 else self._config.group_size
        num_groups = num_inputs // group
        wanted = {"qzeros": (num_groups, num_outputs // NUMBERS_IN_WORD), "scales": (num_groups, num_outputs)}
        for part, shape in wanted.items():
            found = shapes.get(f"{stem}.{part}")
            if found != shape or num_groups * group != num_inputs:
                raise ModelError(f"tensor '{stem}.{part}' has shape {found}, expected {shape}", _REMEDY)
        return num_outputs, num_inputs

    def _act_order(self, stem: str, shapes: Mapping[str, tuple[int, ...]]) -> npt.NDArray[np.int32] | None:
        """Each input's group, unless they follow one another."""
        name, (_, num_inputs) = f"{stem}.g_idx", self._shapes[f"{stem}.weight"]
        if self._config.method == "awq" or name not in shapes:
            return None
        num_groups = shapes[f"{stem}.scales"][0]
        in_order = np.arange(num_inputs) // (num_inputs // num_groups)
        if shapes[name] != (num_inputs,):
            raise ModelError(f"tensor {name!r} has shape {shapes[name]}, expected {(num_inputs,)}", _REMEDY)
        groups = self._weights.words(name)
        if groups.min() < 0 or groups.max() >= num_groups:
            raise ModelError(f"tensor {name!r} names groups beyond the {num_groups} that are there", _REMEDY)
        return None if np.array_equal(groups, in_order) else groups


def _matrix(name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    shape = shapes[name]
    if len(shape) != 2:
        raise ModelError(f"tensor {name!r} has shape {shape}, expected two dimensions", _REMEDY)
    return shape[0], shape[1]
