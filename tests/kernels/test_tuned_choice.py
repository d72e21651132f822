"""The table as the ops ask it: on a GPU, for what it was compiled for, the nearest call's tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from kernels import (
    attention_decode,
    attention_flash,
    attention_prefill,
    matmul_quant,
    matmul_w8a8,
    tuned_choice,
)
from kernels.attention_tile import AttentionTile
from kernels.audit.bench_tensors import BenchTensors
from kernels.audit.calls import CALLS
from kernels.matmul_tile import MatmulTile
from kernels.quant_layout import quantize_int8
from kernels.tune.table import RANKED, Entry, Table, save
from kernels.tuned_choice import Choice, Shape

CPU = torch.device("cpu")
TILE = {"num_rows": 16, "num_keys": 16, "num_warps": 4, "num_stages": 1}
MATMUL_TILE = {"num_rows": 16, "num_outputs": 32, "num_bytes": 32, "num_warps": 4, "num_stages": 1}
HEADS = {"dtype": "float32", "head_dim": 64, "group": 2, "num_kv_heads": 2}


def entry(op: str, shape: Shape, choice: dict[str, int], version: str = triton.__version__) -> Entry:
    return Entry(op, shape, choice, RANKED, "h100", {"torch": "2", "triton": version}, 0)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """This machine's CPU is taken for a GPU."""
    monkeypatch.setattr(tuned_choice, "TUNED", tmp_path)
    monkeypatch.setattr(tuned_choice, "arch_of", lambda device: "sm_90")
    yield tmp_path
    tuned_choice._choice.cache_clear()
    tuned_choice._table.cache_clear()


def write(folder: Path, *entries: Entry) -> None:
    save(Table("sm_90", entries), folder)


def ask(**sizes: int | str) -> Choice | None:
    return tuned_choice.tuned_choice("decode", {"dtype": "float16", "head_dim": 64} | sizes, CPU)


def test_without_a_file_nothing_was_tuned() -> None:
    assert ask(num_seqs=1) is None


def test_the_very_shape_gives_its_splits_and_another_call_the_nearest_one_s_tile(folder: Path) -> None:
    shape = {"dtype": "float16", "head_dim": 64}
    choices = [TILE | {"num_keys": keys, "num_splits": 8} for keys in (32, 64)]
    write(
        folder, *(entry("decode", shape | {"num_seqs": n}, c) for n, c in zip((1, 64), choices, strict=True))
    )
    exact, near = ask(num_seqs=64), ask(num_seqs=3)
    assert exact is not None
    assert exact.num_splits == 8
    assert exact.tile(AttentionTile) == AttentionTile(16, 64, 4, 1)
    assert near is not None
    assert near.num_splits is None
    assert near.tile(AttentionTile) == AttentionTile(16, 32, 4, 1)


def test_another_model_type_op_or_version_has_no_choice(folder: Path) -> None:
    shape = {"dtype": "float16", "head_dim": 64, "num_seqs": 1}
    write(folder, entry("decode", shape, TILE), entry("decode", shape | {"head_dim": 80}, TILE, "3.6.0"))
    assert ask(num_seqs=1) is not None
    assert ask(num_seqs=1, head_dim=128) is None
    assert ask(num_seqs=1, head_dim=80) is None
    assert ask(num_seqs=1, dtype="float32") is None
    assert ask(max_len=1) is None
    assert tuned_choice.tuned_choice("prefill", shape, CPU) is None


def test_a_choice_is_read_once(folder: Path) -> None:
    shape = {"dtype": "float16", "head_dim": 64, "num_seqs": 1}
    write(folder, entry("decode", shape, TILE))
    first = ask(num_seqs=1)
    (folder / "sm_90.json").unlink()
    assert ask(num_seqs=1) is first


def test_only_a_gpu_has_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert tuned_choice.arch_of(CPU) is None
    assert tuned_choice.tuned_choice("decode", HEADS, CPU) is None


class Seen:
    """Wraps what an op makes its constants with, and keeps the tile that it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, place: int) -> None:
        self.tiles: list[Any] = []
        self.splits: list[int] = []
        make = getattr(module, name)

        def seen(*args: Any, **kwargs: Any) -> Any:
            self.tiles.append(args[place])
            self.splits += args[place + 1 : place + 2]
            return make(*args, **kwargs)

        monkeypatch.setattr(module, name, seen)


def call(op: str, **arguments: Any) -> None:
    """As `headrace kernels tune` calls it, but for tiles that are chosen there."""
    CALLS[op](BenchTensors("cpu"), "sm_90", **arguments)()


MODEL = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32"}


def test_decode_uses_its_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = HEADS | {"num_seqs": 2, "max_len": 64}
    write(folder, entry("attention_decode", shape, TILE | {"num_splits": 2}))
    seen = Seen(monkeypatch, attention_decode, "decode_constants", 2)
    call("attention_decode", **MODEL, num_seqs=2, max_len=64)
    call("attention_decode", **MODEL, num_seqs=1, max_len=32)
    call("attention_decode", **MODEL, num_seqs=2, max_len=64, num_splits=1)
    call("attention_decode", **MODEL, num_seqs=2, max_len=64, cache="int8")
    tuned = AttentionTile(**TILE)
    assert seen.tiles[:3] == [tuned] * 3
    assert seen.tiles[3] != tuned
    assert seen.splits == [2, 1, 1, 1]


def test_prefill_uses_its_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = TILE | {"num_rows": 32}
    write(folder, entry("attention_prefill", HEADS | {"num_tokens": 16, "max_len": 32}, tile))
    seen = Seen(monkeypatch, attention_prefill, "prefill_constants", 3)
    query, cache = torch.zeros(16, 4, 64), torch.zeros(3, 2, 16, 64)
    borders, lens = (torch.tensor(x, dtype=torch.int32) for x in ([0, 16], [32]))
    table = torch.tensor([[1, 2]], dtype=torch.int32)
    for stored in (cache, cache.half()):
        attention_prefill.paged_prefill(query, stored, stored, table, borders, lens, 1.0, max_query_len=16)
    assert seen.tiles[0] == AttentionTile(**tile)
    assert seen.tiles[1] != seen.tiles[0]


def test_flash_uses_its_table_for_each_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = {"forward": TILE | {"num_keys": 32}, "backward": TILE | {"num_rows": 32}}
    shape = HEADS | {"num_tokens": 32}
    write(folder, *(entry("attention_flash", shape | {"way": way}, tile) for way, tile in tiles.items()))
    seen = Seen(monkeypatch, attention_flash, "_constants", 3)
    q, k = torch.zeros(1, 4, 32, 64, requires_grad=True), torch.zeros(1, 2, 32, 64)
    attention_flash.flash_attention(q, k, k, 1.0, causal=True).sum().backward()  # type: ignore[no-untyped-call]
    assert seen.tiles == [AttentionTile(**tile) for tile in tiles.values()]


def test_quantised_products_use_their_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"dtype": "float32", "weights": "W8", "num_outputs": 40, "num_columns": 128, "num_rows": 2}
    write(folder, entry("matmul_quant", shape, MATMUL_TILE | {"num_splits": 2}))
    seen = Seen(monkeypatch, matmul_quant, "multiply_constants", 1)
    x, weight = torch.zeros(2, 128), quantize_int8(torch.zeros(40, 128))
    for other in (weight, quantize_int8(torch.zeros(40, 128), 32)):
        matmul_quant.matmul_quant(x, other)
    assert seen.tiles[0] == MatmulTile(**MATMUL_TILE)
    assert seen.tiles[1] != seen.tiles[0]


def test_w8a8_uses_its_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"dtype": "float32", "weights": "W8", "num_outputs": 40, "num_columns": 128, "num_rows": 2}
    write(folder, entry("matmul_w8a8", shape, MATMUL_TILE))
    x, weight = torch.ones(2, 128), quantize_int8(torch.ones(40, 128))
    monkeypatch.setattr(matmul_w8a8, "w8a8_tile", lambda num_rows: pytest.fail("the built-in choice"))
    assert torch.allclose(matmul_w8a8.matmul_w8a8(x, weight), torch.full((2, 40), 128.0))


def test_a_tile_that_is_given_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = MatmulTile(**MATMUL_TILE | {"num_outputs": 64})
    shape = {"dtype": "float32", "weights": "W8", "num_outputs": 40, "num_columns": 128, "num_rows": 2}
    write(folder, entry("matmul_quant", shape, MATMUL_TILE))
    seen = Seen(monkeypatch, matmul_quant, "multiply_constants", 1)
    matmul_quant.matmul_quant(torch.zeros(2, 128), quantize_int8(torch.zeros(40, 128)), tile=given)
    assert seen.tiles == [given]
    assert astuple(replace(given, num_outputs=32)) == tuple(MATMUL_TILE.values())
