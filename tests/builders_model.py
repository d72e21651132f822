"""Models for tests: the tiny one, the same as GGUF, and engines that run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFWriter

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading.source import ModelSource, resolve_model
from engine.policy import FirstComeFirstServed
from engine.request import Request
from engine.scheduler import Scheduler
from engine.torch_executor import TorchExecutor
from tests.builders import FakeClock, run_to_end, tokens_of
from tests.builders_gguf import add_bytes_vocabulary, write_gguf

TINY = Path(__file__).parent / "data" / "tiny"


def tiny_source() -> ModelSource:
    return resolve_model(str(TINY))


def tiny_answers() -> list[dict[str, list[int]]]:
    """Prompts and greedy answers that the script computed in plain numpy."""
    rows: list[dict[str, list[int]]] = json.loads((TINY / "tokens.json").read_text())
    return rows


def write_tiny_gguf(path: Path, **built: Any) -> Path:
    """The tiny model as GGUF. `built` goes to `write_gguf`."""
    edit: Callable[[GGUFWriter], object] = built.pop("edit", lambda writer: None)

    def add_vocabulary_and_edit(writer: GGUFWriter) -> None:
        add_bytes_vocabulary(writer, TINY / "tokenizer.json")
        writer.add_chat_template("{{ messages[0].content }}")
        edit(writer)

    config = json.loads((TINY / "config.json").read_text())
    return write_gguf(path, config, dict(tiny_source().weights()), edit=add_vocabulary_and_edit, **built)


def make_torch_core(
    source: ModelSource,
    *,
    dtype: str,
    executor: TorchExecutor | None = None,
    num_blocks: int = 400,
    block_size: int = 16,
    **sizes: Any,
) -> EngineCore:
    config = EngineConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        **{"max_model_len": source.config.max_model_len, "watermark": 0.0, **sizes},
    )
    executor = executor or TorchExecutor(source, device="cpu", dtype=dtype, num_threads=1)
    executor.allocate_kv(num_blocks, block_size)
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=source.config.eos_token_ids)
    return EngineCore(scheduler, executor, FakeClock())


def answers(core: EngineCore, requests: Sequence[Request]) -> list[list[int]]:
    """All requests' tokens, run together."""
    for request in requests:
        core.add(request)
    outputs = run_to_end(core)
    return [tokens_of(outputs[request.request_id]) for request in requests]
