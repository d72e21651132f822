"""What parity does not say of decode: how it is cut, what it leaves alone, and what it never reads.

That it equals the reference is in `test_parity.py`, also where unused slots and the null block are NaN.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention_decode, reference_attention
from kernels.attention_decode import choose_num_splits, paged_decode, workspace_numel
from kernels.attention_tile import AttentionTile
from kernels.parity.cases_attention_decode import Batch, make_inputs
from kernels.parity.runner import device_in_use
from kernels.parity.tolerance import compare

CPU = torch.device("cpu")
LENS = (70, 0, 1, 33)


def made(batch: Batch, device: torch.device | None = None) -> dict[str, Any]:
    """Arguments of `paged_decode`."""
    generator = torch.Generator().manual_seed(7)
    inputs = dict(make_inputs(generator, device or device_in_use(), batch))
    tile = AttentionTile(num_rows=64, num_keys=inputs.pop("num_keys"), num_warps=4, num_stages=2)
    return inputs | {"tile": tile}


def short(lens: tuple[int, ...] = LENS, **fields: Any) -> dict[str, Any]:
    return made(Batch(torch.float32, (2, 1), lens=lens, num_keys=16, **fields))


def workspace_of(arguments: dict[str, Any]) -> Tensor:
    num_seqs, num_heads, head_dim = arguments["query"].shape
    numel = workspace_numel(num_seqs, num_heads, head_dim, arguments["num_splits"])
    return torch.full((numel,), float("nan"), device=arguments["query"].device)


@pytest.mark.parametrize("num_splits", [3, 17])
def test_splits_change_nothing(num_splits: int) -> None:
    lens = (70, 0, 17)
    whole, split = short(lens), short(lens, num_splits=num_splits)
    assert torch.allclose(paged_decode(**split), paged_decode(**whole), rtol=1e-5, atol=1e-6)


def test_a_workspace_used_before_leaves_nothing_behind() -> None:
    long, brief = short((50, 33, 64), num_splits=4), short((20, 0, 1), num_splits=4)
    workspace = workspace_of(brief)
    expected = paged_decode(**brief, workspace=workspace.clone())
    paged_decode(**long, workspace=workspace)
    assert torch.equal(paged_decode(**brief, workspace=workspace), expected)


def test_a_workspace_may_be_larger_than_needed_but_not_smaller() -> None:
    arguments = short((3, 20), num_splits=2)
    workspace = workspace_of(arguments)
    assert workspace.numel() == 2 * 2 * 2 * (64 + 1)
    larger = torch.full((1000,), float("nan"), device=workspace.device)
    assert torch.equal(paged_decode(**arguments, workspace=larger), paged_decode(**arguments))
    assert larger[workspace.numel() :].isnan().all()
    with pytest.raises(ValueError, match="must hold 520 numbers of float32"):
        paged_decode(**arguments, workspace=workspace[:-1])


@pytest.mark.parametrize("num_splits", [1, 3])
def test_padding_gives_zeros_in_the_output_that_is_given(num_splits: int) -> None:
    arguments = short(num_splits=num_splits)
    out = torch.full_like(arguments["query"], float("nan"))
    assert paged_decode(**arguments, out=out) is out
    assert out[1].eq(0).all()
    assert not out.isnan().any()


@pytest.mark.parametrize("window", [None, 20])
def test_what_the_table_held_before_is_not_read(window: int | None) -> None:
    clean, stale = short(window=window), short(window=window)
    stale["block_table"].masked_fill_(stale["block_table"] == 0, 1)  # a block that is in use
    assert torch.equal(paged_decode(**stale), paged_decode(**clean))


def test_a_poisoned_query_leaves_its_neighbours_alone() -> None:
    clean, poisoned = short(), short()
    poisoned["query"][2, 1] = float("nan")
    expected, computed = paged_decode(**clean), paged_decode(**poisoned)
    assert computed[2, 1].isnan().all()
    computed[2, 1] = expected[2, 1]
    assert torch.equal(computed, expected)


class Launches:
    """Stands for a kernel: keeps grid and arguments, tensors by their shape."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            plain = [tuple(x.shape) if isinstance(x, Tensor) else x for x in arguments]
            self.seen.append((grid, plain, constants))

        return launch


def test_launches_depend_on_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the meta device have no values: to ask for one raises."""
    launches = Launches()
    monkeypatch.setattr(attention_decode, "_attend", launches)
    monkeypatch.setattr(attention_decode, "_combine", launches)
    arguments = made(Batch(torch.float16, (32, 4), lens=(3000, 1), window=2000, stored=torch.int8), CPU)
    meta = {name: x.to("meta") if isinstance(x, Tensor) else x for name, x in arguments.items()}
    paged_decode(**meta | {"num_splits": None, "tile": None})
    (attend_grid, _, constants), (combine_grid, _, combine_constants) = launches.seen
    assert attend_grid == (2, 4, 4)  # 2,000 keys at most, at least 256 a split
    assert combine_grid == (2, 32)
    assert (constants["ROWS"], constants["KEYS"], constants["SPLITS"]) == (16, 64, 4)
    assert (combine_constants["SPLITS"], combine_constants["TURN"]) == (4, 4)


@pytest.mark.parametrize(
    ("num_programs", "max_keys", "num_splits"),
    [
        (8, 131072, 64),  # one sequence of a long context: 528 programs wanted, 66 times 8
        (8, 4096, 16),
        (8, 511, 1),  # two splits would be below 256 keys
        (264, 131072, 2),
        (300, 131072, 2),
        (528, 131072, 1),
        (2048, 131072, 1),
        (0, 131072, 64),
    ],
)
def test_splits_fill_the_device_and_are_never_small(
    num_programs: int, max_keys: int, num_splits: int
) -> None:
    assert choose_num_splits(num_programs, max_keys, CPU) == num_splits


def test_what_does_not_fit_is_refused() -> None:
    arguments = short((3, 20))
    query, k_cache = arguments["query"], arguments["k_cache"]
    every_other = torch.cat((k_cache, k_cache), dim=2)[:, :, ::2]
    odd = torch.zeros(4, 1, 16, 63, dtype=torch.int8)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("one behind the other", {"query": query.repeat(1, 1, 2)[:, :, ::2]}),
        ("one behind the other", {"out": query.repeat(1, 1, 2)[:, :, ::2]}),
        ("contiguous", {"k_cache": every_other, "v_cache": every_other}),
        ("of one shape", {"v_cache": k_cache[:1]}),
        ("3 heads cannot share 2 key heads", {"query": query.repeat(1, 2, 1)[:, :3], **_twice(k_cache)}),
        ("heads of even size", {"query": query[:, :, :63].contiguous(), "k_cache": odd, "v_cache": odd}),
        ("both have scales", {"k_scale": k_cache[..., 0]}),
        ("a window of 0 keys", {"window": 0}),
        ("0 splits", {"num_splits": 0}),
    ]
    for message, change in wrong:
        with pytest.raises(ValueError, match=message):
            paged_decode(**arguments | change)


def _twice(cache: Tensor) -> dict[str, Tensor]:
    return dict.fromkeys(("k_cache", "v_cache"), cache.repeat(1, 2, 1, 1))


@pytest.mark.soak
@settings(max_examples=150)
@given(
    lens=st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(any),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1), (18, 1)]),
    head_dim=st.sampled_from([16, 24, 64, 80]),
    block_size=st.sampled_from([1, 3, 16, 32]),
    stored=st.sampled_from([None, torch.int8, torch.float8_e4m3fn]),
    window=st.none() | st.integers(1, 100),
    soft_cap=st.none() | st.floats(0.5, 50.0),
    num_splits=st.integers(1, 9),
    num_keys=st.sampled_from([16, 32, 64]),
)
def test_any_batch_equals_the_reference(lens: list[int], **fields: Any) -> None:
    arguments = made(Batch(torch.float32, lens=tuple(lens), **fields))
    given = {name: value for name, value in arguments.items() if name not in ("num_splits", "tile")}
    one_each = torch.arange(len(lens) + 1, dtype=torch.int32)
    expected = reference_attention.paged_attention(cu_query_lens=one_each, **given)
    assert compare(paged_decode(**arguments), expected, torch.float32).reason is None
