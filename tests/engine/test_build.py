"""Building an executor: a model goes through its stages, a tape needs neither them nor torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.build import build_executor
from engine.config import EngineConfig
from engine.loading.source import resolve_model
from engine.torch_executor import TorchExecutor
from tests.builders_model import tiny_source

CONFIG = EngineConfig(num_blocks=9, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32)


class Told:
    """The stages as they begin and end, with their details."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str], None]]:
        self.lines.append(f"{name} begins")
        yield self.lines.append
        self.lines.append(f"{name} ends")


def test_a_model_is_loaded_given_its_pool_and_warmed_up_in_this_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told()
    monkeypatch.setattr(
        TorchExecutor, "allocate_kv", lambda self, count, size: told.lines.append(f"{count} × {size}")
    )

    def warm_up(self: TorchExecutor, config: EngineConfig) -> int:
        told.lines.append(f"{config.max_num_seqs} at once")
        return 3 * 2**20

    monkeypatch.setattr(TorchExecutor, "warm_up", warm_up)
    executor = build_executor(
        tiny_source(), CONFIG, dtype="float32", device="cpu", num_threads=1, stage=told.stage
    )
    assert isinstance(executor, TorchExecutor)
    assert told.lines == [
        "weights begins",
        f"{tiny_source().config.model_id}, float32",
        "weights ends",
        "KV pool begins",
        "9 × 16",
        "9 blocks of 16 tokens",
        "KV pool ends",
        "warm-up begins",
        "4 at once",
        "peak 3 MiB beside weights and KV",
        "warm-up ends",
    ]


def test_a_tape_has_no_stages() -> None:
    told = Told()
    build_executor(resolve_model("tape:"), CONFIG, dtype="float32", device="cpu", stage=told.stage)
    assert told.lines == []


def test_a_tape_runs_without_torch() -> None:
    program = (
        "import sys; from engine.build import build_executor; from engine.config import EngineConfig; "
        "from engine.loading.source import resolve_model; "
        "build_executor(resolve_model('tape:'), EngineConfig(num_blocks=9, max_model_len=64), "
        "dtype='float32', device='cpu'); print('torch' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout == "False\n"
