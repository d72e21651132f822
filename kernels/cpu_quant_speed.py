"""How fast the forms of a quantised weight are on this CPU: `python -m kernels.cpu_quant_speed`.

Each line multiplies one projection of all layers in turn, as a step does, so that weights come from memory
and not from a cache that the last call filled. Forms take turns and the best of some rounds counts: what is
printed are microseconds of dense, and how many times as fast each form is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.cpu_quant import PackedInt4, PackedInt8, packed_int4, packed_int8
from kernels.quant_layout import quantize_int4, quantize_int8

SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
"""[N, K] of SmolLM2-135M."""
NUM_LAYERS = 30
NUM_ROWS = (1, 2, 4, 8, 32, 256)
SLOWEST_S = 4.0
"""A form is timed in at most so many seconds a line, once at least."""

Form = tuple[Sequence[Any], Callable[[Tensor, Any], Tensor]]
"""A weight a layer, and what multiplies by one."""


def forms(shape: tuple[int, int], dtype: torch.dtype) -> dict[str, Form]:
    weights = [torch.randn(shape).to(dtype) for _ in range(NUM_LAYERS)]
    int8 = [packed_int8(quantize_int8(weight), dtype) for weight in weights]
    int4 = [packed_int4(quantize_int4(weight), dtype) for weight in weights]
    return {
        "dense": (weights, F.linear),
        "int8 packed": (int8, lambda x, weight: PackedInt8.few_rows(weight, x)),
        "int8 widened": (int8, lambda x, weight: PackedInt8.many_rows(weight, x)),
        "int4 packed": (int4, lambda x, weight: PackedInt4.few_rows(weight, x)),
        "int4 widened": (int4, lambda x, weight: PackedInt4.many_rows(weight, x)),
    }


def best_seconds(forms_: dict[str, Form], x: Tensor, rounds: int) -> dict[str, float]:
    """Of one layer, by form."""
    best, spent = dict.fromkeys(forms_, float("inf")), dict.fromkeys(forms_, 0.0)
    for _ in range(rounds):
        for name, (weights, multiply) in forms_.items():
            if spent[name] > SLOWEST_S / 2:
                continue
            start = time.perf_counter()
            for weight in weights:
                multiply(x, weight)
            taken = time.perf_counter() - start
            spent[name] += taken
            best[name] = min(best[name], taken / len(weights))
    return best


def lines(num_threads: int, dtype: torch.dtype, rounds: int) -> Iterator[str]:
    torch.set_num_threads(num_threads)
    for name, shape in SHAPES.items():
        forms_ = forms(shape, dtype)
        for num_rows in NUM_ROWS:
            best = best_seconds(forms_, torch.randn(num_rows, shape[1]).to(dtype), rounds)
            dense = best.pop("dense")
            ratios = "".join(f"{dense / seconds:14.2f}" for seconds in best.values())
            kind = str(dtype).removeprefix("torch.")
            yield f"{kind:9}{num_threads:3}{name:>9}{num_rows:5}{dense * 1e6:10.0f}{ratios}"


@torch.inference_mode()
def main(rounds: int = 12) -> None:
    print("type   threads  matrix rows  dense µs  int8 packed  int8 widened   int4 packed  int4 widened")
    for dtype in (torch.bfloat16, torch.float32):
        for num_threads in (1, 2):
            for line in lines(num_threads, dtype, rounds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
