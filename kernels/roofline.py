"""How fast each op can be at best: bytes and floating-point operations by formula, and a GPU's peaks.

    time ≥ max(bytes / bandwidth, products / rate of tensor cores, other work / rate of float32)

Bytes: what has to cross the memory's bus once, each input read once and each output written once. What a
kernel's programs read again (keys, for each tile of queries) is told apart as `again_bytes`: it comes from
the L2 cache if it lasts there, else from memory. Products: a multiplication with its addition counts two.
Other work: an addition, multiplication, comparison, division, root or exponential counts one, in a softmax
over all keys at once; rescaling tile by tile comes on top. Not told apart: exponentials run at an eighth to
a sixteenth of the other rate. Sequences of a batch are all `max_len` long.

Arguments are those of `kernels/audit/calls.py`. The formulas are held to a reference that counts
(`tests/kernels/test_roofline.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.gpus import Gpu

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8_e4m3fn": 1}
QUANTISED = ("int8", "float8_e4m3fn")
"""Of caches' types, those that come with scales."""
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Work:
    """What one call has to do."""

    bytes_by_part: Mapping[str, int]
    product_flops: int = 0
    other_flops: int = 0
    again_bytes: int = 0
    dtype: str = "float16"
    """Of the products' operands."""

    @property
    def num_bytes(self) -> int:
        return sum(self.bytes_by_part.values())


@dataclass(frozen=True)
class Limit:
    """What a GPU needs at least for some work."""

    seconds: float
    bound_by: str
    """memory, tensor cores or other work."""
    seconds_by_bound: Mapping[str, float]


def limit(work: Work, gpu: Gpu) -> Limit:
    """Raises KeyError for products that the GPU has no tensor cores for."""
    products = work.product_flops / gpu.rate_of(work.dtype) if work.product_flops else 0.0
    seconds = {
        "memory": work.num_bytes / gpu.bandwidth,
        "tensor cores": 0.0 if work.dtype == "float32" else products,
        "other work": work.other_flops / gpu.other_flops + (products if work.dtype == "float32" else 0.0),
    }
    bound_by = max(seconds, key=lambda name: seconds[name])
    return Limit(seconds[bound_by], bound_by, seconds)


@dataclass(frozen=True)
class _Heads:
    """What attention's formulas share."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    cache: str

    def row_bytes(self, rows: int) -> int:
        """Queries in, outputs out."""
        return 2 * rows * self.head_dim * ITEM_BYTES[self.dtype]

    def slot_bytes(self, slots: int) -> int:
        """Keys and values, with their scales."""
        scales = 2 * 4 if self.cache in QUANTISED else 0
        return slots * (2 * self.head_dim * ITEM_BYTES[self.cache] + scales)

    def softmax_flops(self, scores: int, rows: int, soft_cap: float | None) -> int:
        """A score is scaled, compared, subtracted, exponentiated and summed; capped by a tanh and a
        multiplication; multiplied by its key's and its value's scale. A row is divided by its sum."""
        a_score = 5 + (2 if soft_cap is not None else 0) + (2 if self.cache in QUANTISED else 0)
        return a_score * scores + rows * self.head_dim


def attention_decode(
    *, num_seqs: int, num_heads: int, num_kv_heads: int, head_dim: int, max_len: int,
    dtype: str = "float16", cache: str | None = None, window: int | None = None,
    soft_cap: float | None = None, num_splits: int | None = None, tile: Any = None,
) -> Work:  # fmt: skip
    """Each split writes what it found of every head, and its sum; another kernel reads them. None: one."""
    heads = _Heads(num_heads, num_kv_heads, head_dim, dtype, cache or dtype)
    seen = max_len if window is None else min(max_len, window)
    first_block = (max_len - seen) // BLOCK_SIZE
    rows, splits = num_seqs * num_heads, num_splits or 1
    return Work(
        {
            "queries and outputs": heads.row_bytes(rows),
            "keys and values": heads.slot_bytes(num_seqs * num_kv_heads * seen),
            "tables": 4 * num_seqs * (-(-max_len // BLOCK_SIZE) - first_block + 1),
            "splits": 2 * 4 * rows * splits * (head_dim + 1) if splits > 1 else 0,
        },
        product_flops=4 * rows * seen * head_dim,
        other_flops=heads.softmax_flops(rows * seen, rows, soft_cap),
        dtype=dtype,
    )


def attention_prefill(
    *, num_seqs: int, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, max_len: int,
    dtype: str = "float16", cache: str | None = None, window: int | None = None,
    soft_cap: float | None = None, tile: Any = None,
) -> Work:  # fmt: skip
    """`num_tokens` queries in all, the last ones of each sequence. A tile has 128 rows if none is given:
    the heads of a group for some queries."""
    heads = _Heads(num_heads, num_kv_heads, head_dim, dtype, cache or dtype)
    queries = num_tokens // num_seqs
    first = max_len - queries
    pairs = num_heads * num_seqs * sum(min(first + i + 1, window or max_len) for i in range(queries))
    slots = num_kv_heads * num_seqs * (max_len - _begin(first, window))
    rows_a_tile = 128 if tile is None else tile[0]
    read = read_by_tiles(first, queries, max(1, rows_a_tile // (num_heads // num_kv_heads)), window)
    return Work(
        {
            "queries and outputs": heads.row_bytes(num_tokens * num_heads),
            "keys and values": heads.slot_bytes(slots),
            "tables": 4
            * (num_seqs * (-(-max_len // BLOCK_SIZE) - _begin(first, window) // BLOCK_SIZE + 2) + 1),
        },
        product_flops=4 * pairs * head_dim,
        other_flops=heads.softmax_flops(pairs, num_tokens * num_heads, soft_cap),
        again_bytes=heads.slot_bytes(num_kv_heads * num_seqs * read - slots),
        dtype=dtype,
    )


def attention_flash(
    *, num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int, is_causal: bool = True,
    is_backward: bool = False, dtype: str = "float16", tile: Any = None,
) -> Work:  # fmt: skip
    """One sequence, as many queries as keys. Each head reads keys again for each of its tiles of rows (128
    if none is given), and the heads of a group read the same ones."""
    heads = _Heads(num_heads, num_kv_heads, head_dim, dtype, dtype)
    rows, slots = num_heads * num_tokens, num_kv_heads * num_tokens
    pairs = num_heads * (num_tokens * (num_tokens + 1) // 2 if is_causal else num_tokens**2)
    if is_backward:
        return _flash_backward(heads, rows, slots, pairs)
    rows_a_tile = 128 if tile is None else tile[0]
    read = read_by_tiles(0, num_tokens, rows_a_tile, None)
    if not is_causal:
        read = -(-num_tokens // rows_a_tile) * num_tokens
    return Work(
        {
            "queries and outputs": heads.row_bytes(rows),
            "keys and values": heads.slot_bytes(slots),
            "sums": 4 * rows,
        },
        product_flops=4 * pairs * head_dim,
        other_flops=heads.softmax_flops(pairs, rows, None) + 2 * rows,  # the logarithm of a sum, and the best
        again_bytes=heads.slot_bytes(num_heads * read - slots),
        dtype=dtype,
    )


def _flash_backward(heads: _Heads, rows: int, slots: int, pairs: int) -> Work:
    """Five products a pair of query and key. The kernels, which share nothing, make two of them twice."""
    item = ITEM_BYTES[heads.dtype]
    return Work(
        {
            "queries and outputs": 4 * rows * heads.head_dim * item,  # q, out and its gradient, q's gradient
            "keys and values": 4 * slots * heads.head_dim * item,
            "sums": 4 * rows + 2 * 4 * rows,  # of the softmax; of out · its gradient, written and read
        },
        product_flops=10 * pairs * heads.head_dim,
        other_flops=5 * pairs + (3 * rows + slots) * heads.head_dim,
        dtype=heads.dtype,
    )


def standard_attention(
    *, num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int, dtype: str = "float16"
) -> Work:
    """Attention as three operations: scores are written, read, written as weights and read again."""
    heads = _Heads(num_heads, num_kv_heads, head_dim, dtype, dtype)
    rows, scores = num_heads * num_tokens, num_heads * num_tokens**2
    return Work(
        {
            "queries and outputs": heads.row_bytes(rows),
            "keys and values": heads.slot_bytes(num_kv_heads * num_tokens),
            "scores": 4 * scores * ITEM_BYTES[dtype],
        },
        product_flops=4 * scores * head_dim,
        other_flops=heads.softmax_flops(scores, rows, None),
        dtype=dtype,
    )


def kv_write(
    *, num_tokens: int, num_kv_heads: int, head_dim: int, dtype: str = "float16", cache: str | None = None
) -> Work:
    """Quantised: the largest of a row is sought and its scale made, each value divided."""
    rows = 2 * num_tokens * num_kv_heads
    stored = cache or dtype
    is_quantised = stored in QUANTISED
    return Work(
        {
            "tokens": rows * head_dim * ITEM_BYTES[dtype],
            "cache": rows * head_dim * ITEM_BYTES[stored] + (4 * rows if is_quantised else 0),
            "tables": 8 * num_tokens,
        },
        other_flops=rows * (2 * head_dim + 1) if is_quantised else 0,
        dtype=dtype,
    )


def matmul_quant(
    *, num_rows: int, num_outputs: int, num_columns: int, num_bits: int, group_size: int | None = None,
    has_offsets: bool = False, dtype: str = "float16", num_splits: int | None = None, tile: Any = None,
) -> Work:  # fmt: skip
    """Each group's sum is multiplied by its scale and added; with offsets, the sum of the token's values is
    made once and so is, too. Scales of whole rows are float32, of groups float16. Each split writes its
    sums; another kernel reads them. None: one."""
    groups = num_columns // (group_size or num_columns)
    scale_bytes = (4 if group_size is None else 2) * (2 if has_offsets else 1)
    products, splits = num_rows * num_outputs, num_splits or 1
    weights = num_outputs * num_columns * num_bits // 8 + num_outputs * groups * scale_bytes
    return Work(
        {
            "activations": (num_rows * num_columns + products) * ITEM_BYTES[dtype],
            "weights": weights,
            "splits": 2 * 4 * products * splits if splits > 1 else 0,
        },
        product_flops=2 * products * num_columns,
        other_flops=products * groups * (4 if has_offsets else 2)
        + (num_rows * num_columns if has_offsets else 0),
        again_bytes=_again(num_rows, num_outputs, num_columns * ITEM_BYTES[dtype], weights, tile),
        dtype=dtype,
    )


def matmul_w8a8(
    *, num_rows: int, num_outputs: int, num_columns: int, dtype: str = "float16", tile: Any = None
) -> Work:
    """The largest of a row is sought and its scale made, each value divided; codes are written and read."""
    products, values = num_rows * num_outputs, num_rows * num_columns
    weights = num_outputs * (num_columns + 4)
    return Work(
        {
            "activations": (values + products) * ITEM_BYTES[dtype],
            "codes": 2 * (values + 4 * num_rows),
            "weights": weights,
        },
        product_flops=2 * products * num_columns,
        other_flops=2 * values + num_rows + 2 * products,
        again_bytes=_again(num_rows, num_outputs, num_columns, weights, tile),
        dtype="int8",
    )


def _again(num_rows: int, num_outputs: int, row_bytes: int, weight_bytes: int, tile: Any) -> int:
    """Tokens for each tile of outputs but one, weights for each tile of tokens; tiles are 128 · 128 if not
    given."""
    rows, outputs = (128, 128) if tile is None else tile[:2]
    return (-(-num_outputs // outputs) - 1) * num_rows * row_bytes + (-(-num_rows // rows) - 1) * weight_bytes


def rms_norm(*, num_tokens: int, hidden: int, dtype: str = "float16", has_residual: bool = False) -> Work:
    item = ITEM_BYTES[dtype]
    rows = 4 if has_residual else 2
    return Work(
        {"rows": rows * num_tokens * hidden * item, "weights": hidden * item},
        other_flops=num_tokens * ((5 if has_residual else 4) * hidden + 3),
        dtype=dtype,
    )


def rope(*, num_tokens: int, num_heads: int, head_dim: int, dtype: str = "float16") -> Work:
    """Tables are float32; each token stands at a position of its own."""
    values = num_tokens * num_heads * head_dim
    tables = num_tokens * (4 * head_dim + 8)
    return Work(
        {"rows": 2 * values * ITEM_BYTES[dtype], "tables": tables}, other_flops=3 * values, dtype=dtype
    )


def sample(*, num_rows: int, vocab_size: int, is_edited: bool = False) -> Work:
    """Each logit is compared, and its weight made and summed: read twice, since weights are relative to the
    best one. Edited: divided or multiplied by one penalty, less another, and less a third for each count."""
    logits = num_rows * vocab_size
    a_logit = 4 + (5 if is_edited else 0)  # with a count and a bool
    a_row = 3 * 8 + 8 + 3 * 4 + (3 * 8 + 4 if is_edited else 0)
    return Work(
        {"logits": a_logit * logits, "rows": num_rows * a_row + (4 if is_edited else 0), "out": 9 * num_rows},
        other_flops=(5 + (4 if is_edited else 0)) * logits + num_rows,
        again_bytes=a_logit * logits,
        dtype="float32",
    )


def silu_mul(*, num_tokens: int, inner: int, dtype: str = "float16") -> Work:
    values = num_tokens * inner
    return Work({"rows": 3 * values * ITEM_BYTES[dtype]}, other_flops=4 * values, dtype=dtype)


WORK: dict[str, Callable[..., Work]] = {
    function.__name__: function
    for function in (
        attention_decode,
        attention_prefill,
        attention_flash,
        kv_write,
        matmul_quant,
        matmul_w8a8,
        rms_norm,
        rope,
        sample,
        silu_mul,
    )
}


def _begin(first: int, window: int | None) -> int:
    """The first key that the query at position `first` sees."""
    return 0 if window is None else max(0, first - window + 1)


def read_by_tiles(first: int, queries: int, a_tile: int, window: int | None) -> int:
    """Keys that a head reads, each tile those that its queries see."""
    starts = range(0, queries, a_tile)
    ends = (min(start + a_tile, queries) for start in starts)
    return sum(first + end - _begin(first + start, window) for start, end in zip(starts, ends, strict=True))
