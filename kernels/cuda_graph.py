"""Work on buffers that stay, captured once as a CUDA graph and launched as a whole from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

Output = TypeVar("Output")


class Capture(Protocol):
    def __call__(self, work: Callable[[], Output]) -> Callable[[], Output]:
        """The same work, launched as a whole; what it returns is overwritten by each launch."""


def cuda_capture(device: torch.device) -> Capture:
    """Into graphs that share one pool of memory: never two of them run at a time."""
    cuda = torch.cuda
    with cuda.device(device):
        pool = cuda.graph_pool_handle()

    def capture(work: Callable[[], Output]) -> Callable[[], Output]:
        with cuda.device(device):
            side = cuda.Stream(device)  # type: ignore[no-untyped-call]
            side.wait_stream(cuda.current_stream(device))
            with cuda.stream(side):
                work()  # compiles kernels, and lets libraries take their own memory: not to be captured
            cuda.current_stream(device).wait_stream(side)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, pool=pool):
                output = work()

        def replay() -> Output:
            graph.replay()
            return output

        return replay

    return capture
