"""What can be known to fail before Ray starts: the port, the model, the context, the memory.

Each failure is a `StartError` with one line that says what is wrong and one that says what to do.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from cluster.golden import GoldenPrompt, read_golden
from cluster.public_prefix_file import read_public_prefixes
from cluster.settings import ServeSettings
from cluster.spec import EnginePlan
from cluster.stages import StartError
from engine.chat_template import ChatTemplate
from engine.config import BLOCK_SIZE, EngineConfig
from engine.dtype import resolve_dtype, resolve_kv_dtype
from engine.kv_memory import kv_bytes_per_block, num_blocks_for
from engine.loading.source import ModelError, ModelSource, check_max_model_len, resolve_model
from engine.memory_plan import activation_bytes
from engine.quantization import check_quantization

REPLICA_OVERHEAD_BYTES = 400 * 2**20
"""What a replica's process takes beside weights and KV: Python, Ray, torch (measured 330 MiB)."""
CLUSTER_OVERHEAD_BYTES = 900 * 2**20
"""Ray itself, the proxy, the controller and one gateway (measured 800 MiB)."""


def check_port(host: str, port: int) -> None:
    """Raises `StartError` if the front port cannot be opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, TypeError) as error:  # TypeError: bytes that are no text
        reason = error.strerror if isinstance(error, OSError) else error
        raise StartError(
            f"--host {host} --port {port} cannot be opened: {reason}",
            "stop what listens there, or choose another --host or --port",
        ) from None


def check_device(device: str, replicas: int, devices: Path = Path("/dev")) -> None:
    """Raises `StartError` if there are fewer GPUs than replicas: each takes one of its own."""
    num_gpus = len(list(devices.glob("nvidia[0-9]*")))
    if device == "cuda" and num_gpus < replicas:
        raise StartError(
            f"--device cuda needs {replicas} GPU(s), one a replica, and this machine has {num_gpus}",
            "use --device cpu, or fewer --replicas",
        )


def open_model(settings: ServeSettings) -> ModelSource:
    """Raises `StartError` also for what only gateways read of a model: there it would fail late."""
    try:
        source = resolve_model(settings.model)
        tokenizer, template = source.tokenizer(), source.chat_template()
        if template is not None:
            ChatTemplate(template, tokenizer)
        return source
    except ModelError as error:
        raise StartError(f"--model {settings.model}: {error.message}", error.remedy) from None


def plan_engine(settings: ServeSettings, source: ModelSource) -> EnginePlan:
    """Raises `StartError` if the model, or the context that was asked for, cannot be served."""
    dtype = resolve_dtype(settings.dtype, settings.device, deterministic=settings.deterministic)
    kv_dtype = resolve_kv_dtype(settings.kv_cache_dtype, dtype)
    block_bytes = kv_bytes_per_block(source.config, kv_dtype)
    try:
        check_quantization(settings.quantization, source)
        num_blocks = num_blocks_for(settings.kv_memory, block_bytes)
        context = check_max_model_len(
            source.config, settings.max_model_len, allow_untrained=settings.allow_untrained_context
        )
    except ModelError as error:
        raise StartError(error.message, error.remedy) from None
    capacity = (num_blocks - 1) * BLOCK_SIZE
    warning = None
    if settings.max_model_len is None and context < source.config.max_model_len:
        trained = source.config.max_model_len
        warning = f"context lowered from {trained} to {context} tokens, the model's sliding window"
    if context > capacity:
        if settings.max_model_len is not None:
            enough = (-(-context // BLOCK_SIZE) + 1) * block_bytes
            raise StartError(
                f"--max-model-len {context} does not fit: the KV memory holds {capacity} tokens",
                f"use --max-model-len {capacity} or less, or --kv-memory {enough} or more",
            )
        warning = f"context lowered from {context} to {capacity} tokens, which --kv-memory holds"
        context = capacity
    config = EngineConfig(
        num_blocks=num_blocks,
        max_model_len=context,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    return EnginePlan(config, dtype, kv_dtype, warning)


def check_memory(
    settings: ServeSettings,
    source: ModelSource,
    plan: EnginePlan,
    *,
    beside_bytes: int = CLUSTER_OVERHEAD_BYTES,
) -> None:
    """Raises `StartError` if this machine's free memory cannot hold the replicas, and `beside_bytes`."""
    if settings.device != "cpu":
        return
    needed = settings.most_replicas * replica_bytes(settings, source, plan) + beside_bytes
    free = psutil.virtual_memory().available
    if needed > free:
        raise StartError(
            f"{settings.most_replicas} replica(s) need {_gib(needed)} of memory and {_gib(free)} are free",
            f"lower --kv-memory or {_size_flag(settings)}, or use a smaller --model",
        )


def replica_bytes(settings: ServeSettings, source: ModelSource, plan: EnginePlan) -> int:
    """Main memory of one replica on the CPU. A tape holds no KV and computes nothing."""
    needed = source.weights_bytes(plan.dtype) + REPLICA_OVERHEAD_BYTES
    if source.tape is None:
        needed += settings.kv_memory + activation_bytes(
            source.config, plan.config, plan.dtype, plan.kv_dtype, deterministic=settings.deterministic
        )
    return needed


def _size_flag(settings: ServeSettings) -> str:
    return "--replicas" if settings.max_replicas is None else "--max-replicas"


def open_golden(settings: ServeSettings) -> tuple[GoldenPrompt, ...]:
    """The golden prompts that were given; none is fine. Raises `StartError`."""
    try:
        return read_golden(settings.golden) if settings.golden is not None else ()
    except ValueError as error:
        raise StartError(f"--golden {error}", "mend the file, or leave --golden away") from None


def open_public_prefixes(settings: ServeSettings, source: ModelSource) -> tuple[tuple[int, ...], ...]:
    """The public prefixes that were given, in tokens; none is fine. Raises `StartError`."""
    if settings.public_prefix is None:
        return ()
    tokenizer, template = source.tokenizer(), source.chat_template()
    chat_template = ChatTemplate(template, tokenizer) if template is not None else None
    try:
        return read_public_prefixes(settings.public_prefix, tokenizer, chat_template, BLOCK_SIZE)
    except ValueError as error:
        raise StartError(f"--public-prefix {error}", "mend the file, or leave --public-prefix away") from None


def check_state_dir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"--state-dir {path} cannot be made: {error.strerror}", "choose another one"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise StartError(f"--state-dir {path} is not writable", "choose another one, or change its mode")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
