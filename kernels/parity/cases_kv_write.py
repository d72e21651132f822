"""Cases of `kv_write`: slots in any order, in caches that held something before."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from types import ModuleType

import torch
from torch import Tensor

from kernels import reference, reference_kv_write
from kernels.dtype_name import dtype_name
from kernels.parity.case import BYTES, DTYPES, Inputs, OpCase, Outputs

QUICK = ((3, 2, 16, 64), (2, 3, 4, 80))
WHOLE = (*QUICK, (1, 1, 16, 96), (17, 8, 32, 128), (4, 2, 16, 256), (33, 5, 8, 24))
"""(T, KVH, B, D)"""
HALFWAY = (0.5, 1.5, 2.5, 1.0625, 1.1875, 1.5 * 2.0**-9, 2.5 * 2.0**-9)
"""Between two values of int8, or of fp8, where the largest has scale 1."""
CACHES = ("k_cache", "v_cache", "k_scale", "v_scale")


def cases(*, whole: bool) -> Iterator[OpCase]:
    shapes = WHOLE if whole else QUICK
    for dtype, shape, is_view in product(DTYPES, shapes, (False, True)):
        if is_view or whole or dtype == torch.float16:
            yield _case(dtype, dtype, shape, is_view=is_view)
    yield _case(torch.float32, torch.bfloat16, QUICK[0], is_view=False)
    for dtype, stored, shape in product(DTYPES, BYTES, shapes):
        if whole or (shape == QUICK[0] and dtype != torch.bfloat16):
            yield _case(dtype, stored, shape, is_view=False)


def _case(
    dtype: torch.dtype, stored: torch.dtype, shape: tuple[int, int, int, int], *, is_view: bool
) -> OpCase:
    tokens, kv_heads, block, dim = shape
    kind = f"{dtype_name(dtype)} into {dtype_name(stored)}" + (", a view" if is_view else "")
    return OpCase(
        op="kv_write",
        name=f"{kind} T={tokens} KVH={kv_heads} B={block} D={dim}",
        module="kernels.kv_write",
        dtype=torch.float32 if stored in BYTES else stored,  # of the scales
        make=partial(_make, dtype=dtype, stored=stored, shape=shape, is_view=is_view),
        run=_run,
        reference=_reference,
    )


def _make(
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
    stored: torch.dtype,
    shape: tuple[int, int, int, int],
    is_view: bool,
) -> Inputs:
    num_tokens, num_kv_heads, block_size, head_dim = shape
    num_blocks = -(-num_tokens // block_size) + 2
    slots = block_size + torch.randperm((num_blocks - 1) * block_size, generator=generator)[:num_tokens]
    slots[-1] = 0  # a padding token
    key, value = torch.randn(2, num_tokens, num_kv_heads, head_dim, generator=generator).to(dtype)
    key[0, 0] = 0.0
    if stored in BYTES and num_tokens > 1:
        halfway = torch.tensor(HALFWAY).repeat(head_dim)[: head_dim - 1]
        key[1, 0] = torch.cat((torch.tensor([reference_kv_write.LARGEST[stored]]), halfway))
    if is_view:
        both = torch.stack((key, value), dim=2).flatten(1, 2)
        key, value = both[:, 0::2], both[:, 1::2]
    caches = [
        (8 * torch.randn(num_blocks, num_kv_heads, block_size, head_dim, generator=generator)).to(stored)
        for _ in "kv"
    ]
    scales = [torch.rand(num_blocks, num_kv_heads, block_size, generator=generator) for _ in "kv"]
    inputs = {"key": key, "value": value, "slot_mapping": slots, "k_cache": caches[0], "v_cache": caches[1]}
    if stored in BYTES:
        inputs |= {"k_scale": scales[0], "v_scale": scales[1]}
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def _run(module: ModuleType, inputs: Inputs) -> Outputs:
    written = _copies(inputs)
    module.kv_write(inputs["key"], inputs["value"], slot_mapping=inputs["slot_mapping"], **written)
    return _outputs(written, inputs)


def _reference(inputs: Inputs) -> Outputs:
    written = _copies(inputs)
    write = reference_kv_write.kv_write_quantized if "k_scale" in inputs else reference.kv_write
    write(inputs["key"], inputs["value"], slot_mapping=inputs["slot_mapping"], **written)
    return _outputs(written, inputs)


def _copies(inputs: Inputs) -> dict[str, Tensor]:
    return {name: inputs[name].clone() for name in CACHES if name in inputs}


def _outputs(written: dict[str, Tensor], inputs: Inputs) -> Outputs:
    """The caches but for the null block, which anybody may have written. Where nothing is rounded that the
    interpreter rounds otherwise than a GPU, as bits: they are equal or wrong."""
    is_exact = "k_scale" in inputs or inputs["key"].dtype == inputs["k_cache"].dtype
    return tuple(_bits(x[1:]) if is_exact and "cache" in name else x[1:] for name, x in written.items())


def _bits(x: Tensor) -> Tensor:
    if x.dtype == torch.float8_e4m3fn:
        x = x.float() + 0.0  # -0 is 0
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])
