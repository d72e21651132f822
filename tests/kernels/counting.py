"""Each op once more, number by number, with a meter: what it reads, writes and computes is counted.

Nothing is skipped for being masked or counted for being padding: loops go over what is there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Meter:
    """Owns the counts."""

    touched: set[tuple[Memory, tuple[int, ...], bool]] = field(default_factory=set)
    """Which element of which array was read, or written."""
    product_flops: int = 0
    other_flops: int = 0

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """An element that is read twice crosses the bus once."""
        found: Counter[str] = Counter()
        for memory, _, _ in self.touched:
            found[memory.part] += memory.item_bytes
        return dict(found)

    def dot(self, one: Sequence[Number], other: Sequence[Number]) -> Number:
        self.product_flops += 2 * len(one)
        return Number(sum(a.value * b.value for a, b in zip(one, other, strict=True)), self)

    def total(self, numbers: Sequence[Number]) -> Number:
        """From 0, so as many additions as numbers."""
        return sum(numbers, Number(0.0, self))

    def largest(self, numbers: Sequence[Number]) -> Number:
        """From -inf, so as many comparisons as numbers."""
        return self.made(len(numbers), max(number.value for number in numbers))

    def exp(self, number: Number) -> Number:
        return self.made(1, math.exp(number.value))

    def made(self, flops: int, value: float) -> Number:
        self.other_flops += flops
        return Number(value, self)


@dataclass(frozen=True)
class Number:
    """A float whose arithmetic is counted."""

    value: float
    meter: Meter

    def _with(self, other: Number | float, combined: Callable[[float, float], float]) -> Number:
        value = other.value if isinstance(other, Number) else other
        return self.meter.made(1, combined(self.value, value))

    def __add__(self, other: Number | float) -> Number:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Number | float) -> Number:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Number | float) -> Number:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Number | float) -> Number:
        return self._with(other, lambda a, b: a / b)


@dataclass(frozen=True, eq=False)
class Memory:
    """An array in the GPU's memory; two are never the same one."""

    values: np.ndarray
    part: str
    item_bytes: int
    meter: Meter

    def load(self, *index: int) -> Number:
        self._touch(index, False)
        return Number(float(self.values[index]), self.meter)

    def load_int(self, *index: int) -> int:
        self._touch(index, False)
        return int(self.values[index])

    def store(self, number: Number, *index: int) -> None:
        self._touch(index, True)
        self.values[index] = number.value

    def load_row(self, *index: int) -> list[Number]:
        return [self.load(*index, i) for i in range(self.values.shape[-1])]

    def _touch(self, index: tuple[int, ...], is_write: bool) -> None:
        self.meter.touched.add((self, index, is_write))


def rms_norm(
    x: Memory, residual: Memory | None, weight: Memory, eps: float, out: Memory, residual_out: Memory | None
) -> None:
    meter = x.meter
    num_tokens, hidden = x.values.shape
    for t in range(num_tokens):
        row = x.load_row(t)
        if residual is not None and residual_out is not None:
            row = [a + b for a, b in zip(row, residual.load_row(t), strict=True)]
            for i, number in enumerate(row):
                residual_out.store(number, t, i)
        mean_square = meter.total([number * number for number in row]) / hidden + eps
        scale = meter.made(1, mean_square.value**-0.5)
        for i, number in enumerate(row):
            out.store(number * scale * weight.load(i), t, i)


def rope(x: Memory, cos: Memory, sin: Memory, positions: Memory, out: Memory) -> None:
    num_tokens, num_heads, head_dim = x.values.shape
    half = head_dim // 2
    for t in range(num_tokens):
        position = positions.load_int(t)
        for h in range(num_heads):
            for i in range(half):
                first, second = x.load(t, h, i), x.load(t, h, i + half)
                c, s = cos.load(position, i), sin.load(position, i)
                out.store(first * c - second * s, t, h, i)
                out.store(second * c + first * s, t, h, i + half)


def silu_mul(gate_up: Memory, out: Memory) -> None:
    meter = gate_up.meter
    num_tokens, inner = out.values.shape
    for t in range(num_tokens):
        for i in range(inner):
            gate, up = gate_up.load(t, i), gate_up.load(t, i + inner)
            out.store(gate / (meter.exp(Number(-gate.value, meter)) + 1.0) * up, t, i)


def kv_write(source: Memory, cache: Memory, scales: Memory | None, slots: Memory, largest: float) -> None:
    """Keys or values alone."""
    meter = source.meter
    num_tokens, num_kv_heads, _ = source.values.shape
    block_size = cache.values.shape[2]
    for t in range(num_tokens):
        block, slot = divmod(slots.load_int(t), block_size)
        for h in range(num_kv_heads):
            row = source.load_row(t, h)
            if scales is not None:
                scale = meter.largest([Number(abs(number.value), meter) for number in row]) / largest
                scales.store(scale, block, h, slot)
                row = [number / scale for number in row]
            for i, number in enumerate(row):
                cache.store(number, block, h, slot, i)


def matmul_quant(x: Memory, numbers: Memory, scales: Memory, offsets: Memory | None, out: Memory) -> None:
    """Weights [N, K] as numbers, scales and offsets [N, groups]."""
    meter = x.meter
    groups = scales.values.shape[1]
    size = x.values.shape[1] // groups
    for t in range(len(x.values)):
        row = x.load_row(t)
        parts = [row[g * size : (g + 1) * size] for g in range(groups)]
        totals = [meter.total(part) for part in parts] if offsets is not None else []
        for n in range(len(numbers.values)):
            weights = numbers.load_row(n)
            found = Number(0.0, meter)
            for g, part in enumerate(parts):
                found += meter.dot(part, weights[g * size : (g + 1) * size]) * scales.load(n, g)
                if offsets is not None:
                    found += totals[g] * offsets.load(n, g)
            out.store(found, t, n)


def matmul_w8a8(
    x: Memory, codes: Memory, code_scales: Memory, numbers: Memory, scales: Memory, out: Memory
) -> None:
    """Codes are not rounded here: what is counted is the same."""
    meter = x.meter
    for t in range(len(x.values)):
        row = x.load_row(t)
        scale = meter.largest([Number(abs(number.value), meter) for number in row]) / 127.0
        code_scales.store(scale, t)
        for i, number in enumerate(row):
            codes.store(number / scale, t, i)
    for t in range(len(x.values)):
        for n in range(len(numbers.values)):
            found = meter.dot(codes.load_row(t), numbers.load_row(n))
            out.store(found * scales.load(n) * code_scales.load(t), t, n)


@dataclass(frozen=True)
class Cache:
    """Keys or values where a block table says they are."""

    numbers: Memory
    scales: Memory | None

    def load(self, block: int, head: int, slot: int) -> list[Number]:
        return self.numbers.load_row(block, head, slot)

    def scaled(self, number: Number, block: int, head: int, slot: int) -> Number:
        return number if self.scales is None else number * self.scales.load(block, head, slot)


def paged_attention(
    query: Memory, keys: Cache, values: Cache, table: Memory, cu_query_lens: Memory | None, seq_lens: Memory,
    scale: float, window: int | None, soft_cap: float | None, out: Memory,
) -> None:  # fmt: skip
    """Without `cu_query_lens` each sequence has one query: decode."""
    num_heads = query.values.shape[1]
    group = num_heads // keys.numbers.values.shape[1]
    block_size = keys.numbers.values.shape[2]
    for s in range(len(seq_lens.values)):
        borders = (s, s + 1)
        if cu_query_lens is not None:
            borders = (cu_query_lens.load_int(s), cu_query_lens.load_int(s + 1))
        seq_len = seq_lens.load_int(s)
        for t in range(*borders):
            last = seq_len - (borders[1] - t)
            begin = 0 if window is None else max(0, last - window + 1)
            places = [(table.load_int(s, p // block_size), p % block_size) for p in range(begin, last + 1)]
            for h in range(num_heads):
                at = [(block, h // group, slot) for block, slot in places]
                _attend(query, keys, values, at, scale, soft_cap, out, (t, h))


def _attend(
    query: Memory, keys: Cache, values: Cache, at: list[tuple[int, int, int]],
    scale: float, soft_cap: float | None, out: Memory, row: tuple[int, int],
) -> None:  # fmt: skip
    meter = query.meter
    numbers = query.load_row(*row)
    unit = scale if soft_cap is None else scale / soft_cap
    scores = [keys.scaled(meter.dot(numbers, keys.load(*place)) * unit, *place) for place in at]
    if soft_cap is not None:
        scores = [meter.made(1, math.tanh(score.value)) * soft_cap for score in scores]
    weights, total = _softmax(meter, scores)
    weights = [values.scaled(weight, *place) for weight, place in zip(weights, at, strict=True)]
    columns = zip(*(values.load(*place) for place in at), strict=True)
    for i, column in enumerate(columns):
        out.store(meter.dot(weights, column) / total, *row, i)


def _softmax(meter: Meter, scores: list[Number]) -> tuple[list[Number], Number]:
    """Weights before the division, and their sum."""
    best = meter.largest(scores)
    weights = [meter.exp(score - best) for score in scores]
    return weights, meter.total(weights)


def flash_forward(
    q: Memory, k: Memory, v: Memory, scale: float, causal: bool, out: Memory, lse: Memory
) -> None:
    """One sequence: [H, M, D], [KVH, M, D]."""
    meter = q.meter
    num_heads, num_tokens, _ = q.values.shape
    group = num_heads // k.values.shape[0]
    for h in range(num_heads):
        for i in range(num_tokens):
            row = q.load_row(h, i)
            seen = range(i + 1 if causal else num_tokens)
            scores = [meter.dot(row, k.load_row(h // group, j)) * scale for j in seen]
            weights, total = _softmax(meter, scores)
            for d, column in enumerate(zip(*(v.load_row(h // group, j) for j in seen), strict=True)):
                out.store(meter.dot(weights, column) / total, h, i, d)
            best = max(score.value for score in scores)
            lse.store(meter.made(1, math.log(total.value)) + best, h, i)


def flash_backward(
    q: Memory, k: Memory, v: Memory, out: Memory, d_out: Memory, lse: Memory, delta: Memory, scale: float,
    causal: bool, d_q: Memory, d_k: Memory, d_v: Memory,
) -> None:  # fmt: skip
    meter = q.meter
    num_heads, num_tokens, head_dim = q.values.shape
    group = num_heads // k.values.shape[0]
    for h in range(num_heads):
        for i in range(num_tokens):
            pairs = zip(out.load_row(h, i), d_out.load_row(h, i), strict=True)
            delta.store(meter.total([a * b for a, b in pairs]), h, i)
    sums = {name: np.zeros(memory.values.shape) for name, memory in (("q", d_q), ("k", d_k), ("v", d_v))}
    for h in range(num_heads):
        g = h // group
        for i in range(num_tokens):
            row, gradient = q.load_row(h, i), d_out.load_row(h, i)
            for j in range(i + 1 if causal else num_tokens):
                key, value = k.load_row(g, j), v.load_row(g, j)
                weight = meter.exp(meter.dot(row, key) * scale - lse.load(h, i))
                d_score = (meter.dot(gradient, value) - delta.load(h, i)) * weight
                meter.product_flops += 3 * 2 * head_dim
                sums["v"][g, j] += weight.value * np.array([number.value for number in gradient])
                sums["q"][h, i] += d_score.value * np.array([number.value for number in key])
                sums["k"][g, j] += d_score.value * np.array([number.value for number in row])
    for name, memory, factor in (("q", d_q, scale), ("k", d_k, scale), ("v", d_v, None)):
        for index in np.ndindex(memory.values.shape):
            number = Number(float(sums[name][index]), meter)
            memory.store(number if factor is None else number * factor, *index)


@dataclass(frozen=True)
class Edits:
    """What `sample` changes logits by, beside biases."""

    penalties: tuple[Memory, Memory, Memory]
    bias_begins: Memory
    counts: Memory
    is_in_prompt: Memory


def sample(
    logits: Memory, rows: Sequence[Memory], uniform: Sequence[float], edits: Edits | None,
    token_ids: Memory, outcomes: Memory,
) -> None:  # fmt: skip
    """Of the whole vocabulary, in the order of ids. `rows`: what each row is given, its temperature first."""
    meter = logits.meter
    num_rows, vocab_size = logits.values.shape
    for r in range(num_rows):
        given = [memory.load(r) for memory in rows]
        numbers = [_edited(logits.load(r, i), edits, r, i) for i in range(vocab_size)]
        best = meter.largest(numbers)
        scale = Number(1.0, meter) / given[0]
        weights = [meter.exp((number - best) * scale) for number in numbers]
        total = meter.total(weights)
        reached = np.cumsum([weight.value for weight in weights]) >= uniform[r] * total.value
        token_ids.store(Number(int(reached.argmax()), meter), r)
        outcomes.store(Number(0.0, meter), r)


def _edited(number: Number, edits: Edits | None, row: int, token: int) -> Number:
    if edits is None:
        return number
    repetition, presence, frequency = (penalty.load(row) for penalty in edits.penalties)
    edits.bias_begins.load(row), edits.bias_begins.load(row + 1)
    count = edits.counts.load(row, token)
    edits.is_in_prompt.load(row, token)
    is_out = min(count.value, 1.0)
    divided = number / repetition  # or multiplied, below 0: either way one
    return divided - frequency * count - Number(presence.value * is_out, number.meter)
