"""From what a file holds to a weight of the model: dense, or quantised as `engine/quantization.py` says.

Each tensor is taken in its own type and let go before the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.attention_backend import QuantizedWeight, quant_layout
from engine.loading.errors import ModelError
from engine.loading.stored_weight import StoredWeight
from engine.loading.weights import is_projection
from engine.quantization import Quantization, int4_group

Loaded = Tensor | QuantizedWeight


def loaded_weight(
    name: str,
    array: npt.NDArray[Any] | StoredWeight,
    quantization: Quantization,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Loaded:
    """Raises ModelError for numbers that cannot be quantised, or scales that are none."""
    try:
        if isinstance(array, StoredWeight):
            return _kept(array, device)
        if is_projection(name) and quantization in ("int8", "int4"):
            return _rounded(array, quantization, device)
        return torch.tensor(array, dtype=dtype, device=device)
    except ValueError as error:
        raise ModelError(f"tensor {name!r}: {error}", "use another --quantization, or another file") from None


def stacked(parts: Sequence[Loaded], dtype: torch.dtype) -> Loaded:
    """One matrix of those that read the same input; dense if their formats differ, as some files' do."""
    if len(parts) == 1:
        return parts[0]
    quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
    kinds = {(part.num_bits, part.group_size, part.offsets is None) for part in quantized}
    if len(quantized) == len(parts) and len(kinds) == 1:
        return quant_layout.concat(quantized)
    return torch.cat([part if isinstance(part, Tensor) else part.dequantize(dtype) for part in parts])


def _rounded(array: npt.NDArray[Any], quantization: Quantization, device: torch.device) -> QuantizedWeight:
    weight = (torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)).to(device)
    if quantization == "int8":
        return quant_layout.quantize_int8(weight)
    return quant_layout.quantize_int4(weight, int4_group(weight.shape[1]))


def _kept(stored: StoredWeight, device: torch.device) -> QuantizedWeight:
    """Exactly the file's numbers."""
    for part in (stored.scales, stored.offsets):
        if part is not None and not np.isfinite(part).all():
            raise ValueError("a scale or offset is not finite")
    return quant_layout.from_parts(
        torch.tensor(stored.numbers),
        torch.tensor(stored.scales),
        None if stored.offsets is None else torch.tensor(stored.offsets),
        stored.num_bits,
        stored.group_size,
    ).to(device)
