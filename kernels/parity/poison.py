"""Memory that nobody wrote is NaN: what an op leaves out of its output shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_UNWRITTEN = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided}


class PoisonedMemory(TorchFunctionMode):
    """Inside, what `torch.empty` and its kin return is filled with NaN, integers with their largest value.

    torch's own switch for this (`fill_uninitialized_memory`) comes with its compiler: seven seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return poison(result) if func in _UNWRITTEN else result


def poison(tensor: Tensor) -> Tensor:
    """Fills it, and returns it."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)
