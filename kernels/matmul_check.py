"""What must hold of the tensors of any product with quantised weights."""

from __future__ import annotations

from torch import Tensor

from kernels.quant_layout import QuantizedWeight


def check_product(
    x: Tensor,  # [T, K]
    weight: QuantizedWeight,  # [N, K]
    bias: Tensor | None,  # [N]
    out: Tensor,  # [T, N]
) -> None:
    """Raises ValueError for tensors that do not fit each other, or that a kernel cannot walk through."""
    num_outputs, num_columns = weight.shape
    if x.shape[1] != num_columns:
        raise ValueError(f"rows of {x.shape[1]} for a weight of {num_columns} columns")
    if x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("a token's values must lie side by side")
    if out.shape != (len(x), num_outputs):
        raise ValueError(f"out of {list(out.shape)}, not {[len(x), num_outputs]}")
    if bias is not None and bias.shape != (num_outputs,):
        raise ValueError(f"a bias of {list(bias.shape)} for {num_outputs} outputs")
