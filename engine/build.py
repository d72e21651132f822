"""Builds an executor for a model source: the one place where model and tape part ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from engine.config import BackendName, EngineConfig
from engine.executor import Executor
from engine.loading.source import ModelSource
from engine.quantization import Quantization

Stage = Callable[[str], AbstractContextManager[Callable[[str], None]]]
"""Entered around each stage of a load with its name; what it yields takes a detail to show."""


@contextmanager
def _untold(name: str) -> Iterator[Callable[[str], None]]:
    yield lambda detail: None


def build_executor(
    source: ModelSource,
    config: EngineConfig,
    *,
    dtype: str,
    device: str,
    kv_dtype: str | None = None,
    deterministic: bool = False,
    num_threads: int | None = None,
    backend: BackendName = "auto",
    quantization: Quantization = "none",
    stage: Stage = _untold,
) -> Executor:
    """Loads weights, takes the KV pool and warms up. Torch is imported here, when there is a model."""
    if source.tape is not None:
        from engine.tape import TapeExecutor

        return TapeExecutor(source.tape, num_blocks=config.num_blocks, block_size=config.block_size)
    with stage("weights") as detail:
        from engine.torch_executor import TorchExecutor

        executor = TorchExecutor(
            source,
            device=device,
            dtype=dtype,
            kv_dtype=kv_dtype,
            deterministic=deterministic,
            num_threads=num_threads,
            max_model_len=config.max_model_len,
            backend=backend,
            quantization=quantization,
            max_num_seqs=config.max_num_seqs,
        )
        kept = "" if quantization == "none" else f", {quantization}"
        detail(f"{source.config.model_id}, {dtype}{kept}")
    with stage("KV pool") as detail:
        executor.allocate_kv(config.num_blocks, config.block_size)
        detail(f"{config.num_blocks} blocks of {config.block_size} tokens")
    with stage("warm-up") as detail:
        peak = executor.warm_up(config)
        if peak is not None:
            detail(f"peak {peak / 2**20:.0f} MiB beside weights and KV")
    return executor
