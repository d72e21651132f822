"""An op of three lines, so that parity itself can be tested: twice x."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from kernels.parity.case import OpCase


def double_case(**fields: Any) -> OpCase:
    return OpCase(
        **{
            "op": "double",
            "name": "float32",
            "module": "tests.kernels.parity_case",
            "dtype": torch.float32,
            "make": lambda generator, device: {"x": torch.randn(2, 3, generator=generator), "by": 2.0},
            "run": lambda module, inputs: (module.double(inputs["x"], inputs["by"]),),
            "reference": lambda inputs: (inputs["x"].double() * inputs["by"],),
            **fields,
        }
    )


def double(x: Tensor, by: float) -> Tensor:
    return torch.mul(x, by, out=torch.empty_like(x))


def module_with(double: Any) -> ModuleType:
    return cast(ModuleType, SimpleNamespace(double=double))
