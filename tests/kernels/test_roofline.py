"""The formulas of the roofline against a reference that counts, which itself computes what the ops do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference, roofline
from kernels.gpus import GPUS
from kernels.reference_attention import paged_attention
from kernels.roofline import Work, limit, standard_attention
from tests.kernels import counting
from tests.kernels.counting import Cache, Memory, Meter

ITEM_BYTES = 2
"""Of every tensor that has no other: float16 in name, float64 in value."""


class Run:
    """One counted run: gives out arrays of random numbers, and holds the work to what was counted."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._numbers = np.random.default_rng(0)

    def array(self, part: str, *shape: int, item_bytes: int = ITEM_BYTES) -> Memory:
        return Memory(self._numbers.standard_normal(shape), part, item_bytes, self.meter)

    def given(self, part: str, values: Any, item_bytes: int = 4) -> Memory:
        return Memory(np.array(values), part, item_bytes, self.meter)

    def assert_counted(self, work: Work) -> None:
        assert {
            part: count for part, count in work.bytes_by_part.items() if count
        } == self.meter.bytes_by_part
        assert work.product_flops == self.meter.product_flops
        assert work.other_flops == self.meter.other_flops


def tensor(memory: Memory) -> Tensor:
    return torch.from_numpy(memory.values)


sizes = st.integers(1, 5)
few = settings(max_examples=20)


@few
@given(sizes, sizes, st.booleans())
def test_rms_norm(num_tokens: int, hidden: int, has_residual: bool) -> None:
    run = Run()
    x, weight = run.array("rows", num_tokens, hidden), run.array("weights", hidden)
    residual = run.array("rows", num_tokens, hidden) if has_residual else None
    out, total = run.array("rows", num_tokens, hidden), run.array("rows", num_tokens, hidden)
    counting.rms_norm(x, residual, weight, 1e-5, out, total if has_residual else None)
    summed = tensor(x) + (0 if residual is None else tensor(residual))
    torch.testing.assert_close(tensor(out), reference.rms_norm(summed, tensor(weight), 1e-5))
    run.assert_counted(roofline.rms_norm(num_tokens=num_tokens, hidden=hidden, has_residual=has_residual))


@few
@given(sizes, sizes, sizes)
def test_rope(num_tokens: int, num_heads: int, half: int) -> None:
    run = Run()
    x, out = (run.array("rows", num_tokens, num_heads, 2 * half) for _ in range(2))
    cos, sin = (run.array("tables", 16, half, item_bytes=4) for _ in range(2))
    positions = run.given("tables", np.arange(num_tokens)[::-1] * 2, item_bytes=8)
    counting.rope(x, cos, sin, positions, out)
    rows = torch.from_numpy(positions.values.copy())
    torch.testing.assert_close(tensor(out), reference.rope(tensor(x), tensor(cos)[rows], tensor(sin)[rows]))
    run.assert_counted(roofline.rope(num_tokens=num_tokens, num_heads=num_heads, head_dim=2 * half))


@few
@given(sizes, sizes)
def test_silu_mul(num_tokens: int, inner: int) -> None:
    run = Run()
    gate_up, out = run.array("rows", num_tokens, 2 * inner), run.array("rows", num_tokens, inner)
    counting.silu_mul(gate_up, out)
    torch.testing.assert_close(tensor(out), reference.silu_mul(tensor(gate_up)))
    run.assert_counted(roofline.silu_mul(num_tokens=num_tokens, inner=inner))


@few
@given(sizes, sizes, sizes, st.booleans())
def test_kv_write(num_tokens: int, num_kv_heads: int, head_dim: int, is_quantised: bool) -> None:
    run = Run()
    slots = run.given("tables", [16 + 3 * i for i in range(num_tokens)], item_bytes=8)
    for _ in range(2):
        source = run.array("tokens", num_tokens, num_kv_heads, head_dim)
        cache = run.array(
            "cache", 3, num_kv_heads, 16, head_dim, item_bytes=1 if is_quantised else ITEM_BYTES
        )
        scales = run.array("cache", 3, num_kv_heads, 16, item_bytes=4) if is_quantised else None
        counting.kv_write(source, cache, scales, slots, 127.0)
        for token, slot in enumerate(slots.values):
            at = slot // 16, slice(None), slot % 16
            stored = cache.values[at] * (1.0 if scales is None else scales.values[at][:, None])
            np.testing.assert_allclose(stored, source.values[token])
    run.assert_counted(
        roofline.kv_write(
            num_tokens=num_tokens,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            cache="int8" if is_quantised else None,
        )
    )


@few
@given(sizes, sizes, st.integers(1, 3), st.sampled_from([None, 32]), st.booleans())
def test_matmul_quant(
    num_rows: int, num_outputs: int, num_groups: int, group_size: int | None, has_offsets: bool
) -> None:
    run = Run()
    groups, columns = (1, 5) if group_size is None else (num_groups, 32 * num_groups)
    x, out = run.array("activations", num_rows, columns), run.array("activations", num_rows, num_outputs)
    numbers = run.array("weights", num_outputs, columns, item_bytes=1)
    item_bytes = 4 if group_size is None else 2
    scales, offsets = (run.array("weights", num_outputs, groups, item_bytes=item_bytes) for _ in range(2))
    counting.matmul_quant(x, numbers, scales, offsets if has_offsets else None, out)
    weight = tensor(numbers).view(num_outputs, groups, -1) * tensor(scales)[..., None]
    weight += tensor(offsets)[..., None] * has_offsets
    torch.testing.assert_close(tensor(out), tensor(x) @ weight.flatten(1).t())
    run.assert_counted(
        roofline.matmul_quant(
            num_rows=num_rows, num_outputs=num_outputs, num_columns=columns, num_bits=8,
            group_size=group_size, has_offsets=has_offsets,
        )
    )  # fmt: skip


@few
@given(sizes, sizes, sizes)
def test_matmul_w8a8(num_rows: int, num_outputs: int, num_columns: int) -> None:
    run = Run()
    x, out = run.array("activations", num_rows, num_columns), run.array("activations", num_rows, num_outputs)
    codes = run.array("codes", num_rows, num_columns, item_bytes=1)
    code_scales = run.array("codes", num_rows, item_bytes=4)
    numbers = run.array("weights", num_outputs, num_columns, item_bytes=1)
    scales = run.array("weights", num_outputs, item_bytes=4)
    counting.matmul_w8a8(x, codes, code_scales, numbers, scales, out)
    torch.testing.assert_close(tensor(out), tensor(x) @ (tensor(numbers) * tensor(scales)[:, None]).t())
    shapes = {"num_rows": num_rows, "num_outputs": num_outputs, "num_columns": num_columns}
    run.assert_counted(roofline.matmul_w8a8(**shapes))


def test_weights_of_4_bits_take_half_the_bytes_and_splits_are_written_and_read() -> None:
    shapes = {"num_rows": 1, "num_outputs": 4096, "num_columns": 4096}
    eight, four = (roofline.matmul_quant(**shapes, num_bits=bits) for bits in (8, 4))
    assert eight.num_bytes - four.num_bytes == 4096 * 4096 // 2
    split = roofline.matmul_quant(**shapes, num_bits=4, num_splits=8)
    assert split.num_bytes - four.num_bytes == 2 * 4 * 8 * 4096


def test_tiles_of_tokens_read_weights_again_and_tiles_of_outputs_tokens() -> None:
    shapes = {"num_rows": 100, "num_outputs": 96, "num_columns": 64}
    work = roofline.matmul_w8a8(**shapes, tile=(32, 48, 64, 4, 3))
    assert work.again_bytes == 3 * 96 * 68 + 1 * 100 * 64


class Paged:
    """A batch of equally long sequences in a paged cache."""

    def __init__(
        self, run: Run, num_seqs: int, num_kv_heads: int, head_dim: int, seq_len: int, is_quantised: bool
    ) -> None:
        blocks = -(-seq_len // 16)
        shape = (num_seqs * blocks + 1, num_kv_heads, 16, head_dim)
        self.caches = []
        for _ in range(2):
            numbers = run.array("keys and values", *shape, item_bytes=1 if is_quantised else ITEM_BYTES)
            scales = run.array("keys and values", *shape[:3], item_bytes=4) if is_quantised else None
            self.caches.append(Cache(numbers, scales))
        table = np.arange(1, num_seqs * blocks + 1).reshape(num_seqs, blocks)[:, ::-1]
        self.table = run.given("tables", table)
        self.seq_lens = run.given("tables", [seq_len] * num_seqs)

    def attended(
        self, query: Memory, cu_query_lens: list[int], window: int | None, soft_cap: float | None
    ) -> Tensor:
        scales = [None if c.scales is None else tensor(c.scales) for c in self.caches]
        return paged_attention(
            tensor(query), *(tensor(c.numbers) for c in self.caches), tensor(self.table).clone(),
            torch.tensor(cu_query_lens), tensor(self.seq_lens), 0.3,
            window=window, soft_cap=soft_cap, k_scale=scales[0], v_scale=scales[1],
        )  # fmt: skip


attention = {
    "num_seqs": st.integers(1, 2),
    "num_kv_heads": st.integers(1, 2),
    "group": st.integers(1, 2),
    "head_dim": st.integers(1, 4),
    "seq_len": st.integers(4, 35),
    "window": st.sampled_from([None, 1, 5, 100]),
    "soft_cap": st.sampled_from([None, 2.0]),
    "is_quantised": st.booleans(),
}


@few
@given(st.fixed_dictionaries(attention))
def test_attention_decode(case: Mapping[str, Any]) -> None:
    check_attention(case, 1, roofline.attention_decode)


@few
@given(st.fixed_dictionaries(attention), st.integers(1, 4))
def test_attention_prefill(case: Mapping[str, Any], queries: int) -> None:
    check_attention(case, queries, roofline.attention_prefill)


def check_attention(case: Mapping[str, Any], queries: int, formula: Callable[..., Work]) -> None:
    is_decode = formula is roofline.attention_decode
    run = Run()
    num_seqs, num_heads = case["num_seqs"], case["num_kv_heads"] * case["group"]
    paged = Paged(
        run, num_seqs, case["num_kv_heads"], case["head_dim"], case["seq_len"], case["is_quantised"]
    )
    shape = (num_seqs * queries, num_heads, case["head_dim"])
    query, out = (run.array("queries and outputs", *shape) for _ in range(2))
    borders = [queries * s for s in range(num_seqs + 1)]
    counting.paged_attention(
        query, *paged.caches, paged.table, None if is_decode else run.given("tables", borders),
        paged.seq_lens, 0.3, case["window"], case["soft_cap"], out,
    )  # fmt: skip
    torch.testing.assert_close(tensor(out), paged.attended(query, borders, case["window"], case["soft_cap"]))
    run.assert_counted(
        formula(
            num_seqs=num_seqs, num_heads=num_heads, num_kv_heads=case["num_kv_heads"],
            head_dim=case["head_dim"], max_len=case["seq_len"], window=case["window"],
            soft_cap=case["soft_cap"], cache="int8" if case["is_quantised"] else None,
            **({} if is_decode else {"num_tokens": num_seqs * queries}),
        )
    )  # fmt: skip


@pytest.mark.parametrize("window", [None, 6])
def test_what_tiles_of_queries_read_again(window: int | None) -> None:
    """10 queries behind 20 keys, 4 heads of a group of 2: tiles of 6 rows are 3 queries, the last one 1."""
    read = 0
    for start in range(0, 10, 3):
        queries = min(3, 10 - start)
        run = Run()
        paged = Paged(run, 1, 2, 4, 20 + start + queries, is_quantised=False)
        query, out = (run.array("queries and outputs", queries, 4, 4) for _ in range(2))
        borders = run.given("tables", [0, queries])
        counting.paged_attention(
            query, *paged.caches, paged.table, borders, paged.seq_lens, 1.0, window, None, out
        )
        read += run.meter.bytes_by_part["keys and values"]
    work = roofline.attention_prefill(
        num_seqs=1, num_tokens=10, num_heads=4, num_kv_heads=2, head_dim=4, max_len=30, window=window,
        tile=(6, 16, 4, 2),
    )  # fmt: skip
    assert work.again_bytes == read - work.bytes_by_part["keys and values"]


@few
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 6), st.booleans())
def test_attention_flash_both_ways(
    num_kv_heads: int, group: int, head_dim: int, num_tokens: int, is_causal: bool
) -> None:
    shapes = {
        "num_heads": num_kv_heads * group,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "num_tokens": num_tokens,
        "is_causal": is_causal,
    }
    run = Run()
    q, out, d_out, d_q = (
        run.array("queries and outputs", num_kv_heads * group, num_tokens, head_dim) for _ in range(4)
    )
    k, v, d_k, d_v = (run.array("keys and values", num_kv_heads, num_tokens, head_dim) for _ in range(4))
    lse, delta = (run.array("sums", num_kv_heads * group, num_tokens, item_bytes=4) for _ in range(2))
    counting.flash_forward(q, k, v, 0.3, is_causal, out, lse)
    run.assert_counted(roofline.attention_flash(**shapes))

    tensors = [tensor(x).clone().requires_grad_() for x in (q, k, v)]
    attended = torch.nn.functional.scaled_dot_product_attention(
        *(x[None] for x in tensors), is_causal=is_causal, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(tensor(out), attended[0])
    attended[0].backward(tensor(d_out))
    run.meter.touched.clear()
    run.meter.product_flops = run.meter.other_flops = 0
    counting.flash_backward(q, k, v, out, d_out, lse, delta, 0.3, is_causal, d_q, d_k, d_v)
    for found, wanted in zip((d_q, d_k, d_v), tensors, strict=True):
        torch.testing.assert_close(tensor(found), wanted.grad)
    run.assert_counted(roofline.attention_flash(**shapes, is_backward=True))


@few
@given(sizes, sizes, st.booleans())
def test_sample(num_rows: int, vocab_size: int, is_edited: bool) -> None:
    run = Run()
    logits = run.array("logits", num_rows, vocab_size, item_bytes=4)
    sizes_of_parameters = (8, 8, 8, 8, 4, 4, 4)
    rows = [run.given("rows", [0.7] * num_rows, item_bytes=size) for size in sizes_of_parameters]
    edits = None
    if is_edited:
        penalties = [run.given("rows", [value] * num_rows, item_bytes=8) for value in (1.0, 0.0, 0.0)]
        edits = counting.Edits(
            (penalties[0], penalties[1], penalties[2]),
            bias_begins=run.given("rows", [0] * (num_rows + 1)),
            counts=run.given("logits", np.ones((num_rows, vocab_size))),
            is_in_prompt=run.given("logits", np.ones((num_rows, vocab_size)), item_bytes=1),
        )
    token_ids = run.given("out", [0] * num_rows, item_bytes=8)
    outcomes = run.given("out", [0] * num_rows, item_bytes=1)
    uniform = np.linspace(0.1, 0.9, num_rows).tolist()
    counting.sample(logits, rows, uniform, edits, token_ids, outcomes)
    probabilities = torch.softmax(tensor(logits) / 0.7, dim=1).cumsum(dim=1)
    wanted = [int((row >= u).to(torch.int8).argmax()) for row, u in zip(probabilities, uniform, strict=True)]
    assert token_ids.values.tolist() == wanted
    run.assert_counted(roofline.sample(num_rows=num_rows, vocab_size=vocab_size, is_edited=is_edited))


def test_splits_are_written_and_read_once_more() -> None:
    shapes = {"num_seqs": 3, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "max_len": 4096}
    whole = roofline.attention_decode(**shapes)
    split = roofline.attention_decode(**shapes, num_splits=4)
    assert split.num_bytes - whole.num_bytes == 2 * 3 * 8 * 4 * 65 * 4
    assert split.product_flops == whole.product_flops


def test_standard_attention_moves_the_matrix_that_flash_does_not() -> None:
    """128 K tokens, 64 heads, bfloat16: a matrix of 2.2 TB, which is written twice and read twice."""
    shapes = {
        "num_heads": 64, "num_kv_heads": 64, "head_dim": 128, "num_tokens": 1 << 17, "dtype": "bfloat16"
    }  # fmt: skip
    standard = standard_attention(**shapes)
    flash = roofline.attention_flash(**shapes, is_causal=False)
    assert standard.bytes_by_part["scores"] / 4 == 64 * 2**34 * 2 == pytest.approx(2.2e12, rel=1e-3)
    assert standard.product_flops == flash.product_flops
    assert flash.num_bytes == pytest.approx(8.6e9, rel=0.01)
    assert standard.num_bytes / flash.num_bytes == pytest.approx(1024, rel=0.01)


def test_the_largest_of_the_three_bounds_rules() -> None:
    gpu = GPUS["h100"]
    by_memory = limit(Work({"all": 3_350_000_000}, product_flops=10**9, other_flops=10**9), gpu)
    assert (by_memory.bound_by, by_memory.seconds) == ("memory", pytest.approx(1e-3))
    by_products = limit(Work({"all": 1}, product_flops=989_400_000_000), gpu)
    assert (by_products.bound_by, by_products.seconds) == ("tensor cores", pytest.approx(1e-3))
    by_others = limit(Work({"all": 1}, other_flops=66_900_000_000), gpu)
    assert (by_others.bound_by, by_others.seconds) == ("other work", pytest.approx(1e-3))


def test_float32_goes_without_tensor_cores_and_fp8_needs_them() -> None:
    single = limit(Work({}, product_flops=66_900_000_000, dtype="float32"), GPUS["h100"])
    assert (single.bound_by, single.seconds) == ("other work", pytest.approx(1e-3))
    with pytest.raises(KeyError):
        limit(Work({}, product_flops=1, dtype="float8_e4m3fn"), GPUS["a100"])


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
def test_decode_is_bound_by_memory_and_a_long_prefill_by_tensor_cores(gpu: Any) -> None:
    llama = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    decode = limit(roofline.attention_decode(**llama, num_seqs=64, max_len=4096), gpu)
    prefill = limit(roofline.attention_prefill(**llama, num_seqs=1, num_tokens=8192, max_len=8192), gpu)
    assert decode.bound_by == "memory"
    assert prefill.bound_by in ("tensor cores", "other work")
    assert math.isfinite(prefill.seconds)
