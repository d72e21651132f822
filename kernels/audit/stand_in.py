"""Compiles what a public function would launch, on a machine without a GPU.

A stand-in takes the place of the driver, names an architecture, and launches nothing. Functions are called
with tensors on torch's `meta` device, which have shapes and no data: so kernels are specialised exactly as
they would be for such a call, to the divisibility of each stride.

What it does to Triton holds for the whole process: it belongs in one of its own (`worker.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernels.audit.disassembly import disassembly, usage
from kernels.audit.facts import Compiled
from kernels.gpus import arch_number


class _StandIn:
    def __init__(self, arch: str) -> None:
        self._arch = arch_number(arch)

    def get_current_device(self) -> int:
        """A number for each architecture, since compiled kernels are kept by it."""
        return self._arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self._arch, 32)


def compiled_by(call: Callable[[], object], arch: str) -> list[Compiled]:
    """Every kernel that `call` launches, in order. Raises what Triton raises where one does not compile."""
    driver.set_active(_StandIn(arch))
    launched: list[Compiled] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        found = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        launched.append(_texts(kernel.fn.__name__, grid, found))
        return found

    JITFunction.run = compile_only
    try:
        call()
    finally:
        JITFunction.run = run
    return launched


def _texts(name: str, grid: tuple[int, ...], compiled: Any) -> Compiled:
    metadata, texts = compiled.metadata, compiled.asm
    return Compiled(
        kernel=name,
        grid=grid,
        num_warps=metadata.num_warps,
        num_stages=metadata.num_stages,
        shared_bytes=metadata.shared,
        tensor_memory_columns=metadata.tmem_size or 0,
        ttir=texts["ttir"],
        ttgir=texts["ttgir"],
        ptx=texts["ptx"],
        sass=disassembly(texts["cubin"]),
        usage=usage(texts["cubin"]),
    )
