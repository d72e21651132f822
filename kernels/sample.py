"""From logits to one token a row, as `reference_sampling.py` says, without sorting the vocabulary.

The order: bias, penalties, mask; then temperature, top-k, top-p, min-p, and the draw. Candidates stand by
(logit descending, id ascending), and what is kept is a prefix of that order. So a cut is told by its last
candidate: by the logit, found by bisection over the bits of a float, and among equal logits by the rank.

A weight is exp((logit - best) / temperature) in whole units of 2⁻⁴⁰. Sums of whole numbers are the same in
any order: a row's token depends on nothing that is beside it, and on no tile. Weights come from float32: a
cumulative probability is off by 2e-6 at most (by arithmetic; numpy on 150,000 logits: 1e-7). A border nearer
than 1e-5 to the number that it is compared with, the one drawn or top-p, is told as a near tie; everything
else equals the reference.

Three kernels. The first finds the best logit of each group of ids. The second takes from these a bound that
at least `num_listed` groups reach, lists the candidates that do, and weighs the vocabulary. The third cuts
and draws within the list. Where that ends too soon or overflowed, it reads the row instead, some 20 times a
cut, with the same result.

Bytes moved, for R rows of V logits: 8 · R · V, the logits twice; with top-k (greedy rows too) 4 · R · V and
those tiles that hold a listed candidate once more. Rows with penalties read 5 · V more each time: counts, and
a bool for the prompt. Groups and list, up to 100 KiB a row, are written and read again. As separate
operations a sort alone would write values and ids, 12 · R · V; softmax, sums and masks would read them again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.float_order import (
    highest_key,
    is_finite,
    keys_of,
    lowest_finite_key,
    lowest_key,
    midway,
    reached_by,
    value_of,
)
from kernels.reference_sampling import GREEDY_BELOW
from kernels.sample_rows import (
    NOT_FINITE,
    LogitEdits,
    RowSampling,
    Sampled,
    SampleTile,
    Workspace,
    check_shapes,
    default_tile,
    make_sampled,
    make_workspace,
)

_NOT_FINITE = tl.constexpr(NOT_FINITE)
_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_LOG2_E = tl.constexpr(math.log2(math.e))
_UNITS = tl.constexpr(2.0**40)
"""That the best candidate weighs. The sum over 2²² candidates is below 2⁶³."""
_MARGIN = tl.constexpr(1e-5)


class _Row(NamedTuple):
    """One row in a kernel: what its logits are, and what makes weights of them."""

    place: tl.tensor
    logits: tl.tensor  # pointer
    edits: LogitEdits | None  # pointers
    best: tl.tensor
    log_scale: tl.tensor  # log2(e) / temperature


class _Source(NamedTuple):
    """Where a kernel reads candidates: in the row's list, or else in the row itself."""

    is_listed: tl.tensor
    length: tl.tensor
    keys: tl.tensor  # pointers
    weights: tl.tensor
    ids: tl.tensor


@triton.jit
def _maxima_kernel(
    logits, stride, edits, maxima,
    V: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, IDS: tl.constexpr,
):  # fmt: skip
    """`IDS` ids of one row, that is `IDS` / `GROUP` groups."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * IDS + tl.arange(0, IDS)
    groups = tl.program_id(1) * (IDS // GROUP) + tl.arange(0, IDS // GROUP)

    values = _values(row, logits + row * stride, edits, ids, V)

    best = tl.max(tl.reshape(keys_of(values), [IDS // GROUP, GROUP]), axis=1)

    tl.store(maxima + row * GROUPS + groups, best, groups < GROUPS)


@triton.jit
def _list_kernel(
    logits, stride, sampling, edits, workspace,
    V: tl.constexpr, GROUPS: tl.constexpr, PADDED_GROUPS: tl.constexpr, GROUP: tl.constexpr,
    LISTED: tl.constexpr, CAPACITY: tl.constexpr, IDS: tl.constexpr,
):  # fmt: skip
    """One row: its bound, those who reach it in the order of ids, and the weight of the vocabulary."""
    place = tl.program_id(0).to(tl.int64)
    temperature, top_k = _temperature_and_top_k(sampling, place, V)
    maxima = workspace.maxima + place * GROUPS
    lowest: tl.constexpr = lowest_key(maxima.dtype.element_ty)
    group = tl.arange(0, PADDED_GROUPS)
    best_of_group = tl.load(maxima + group, group < GROUPS, lowest)
    best_key = tl.max(best_of_group, axis=0)
    wanted = tl.where((top_k > 0) & (top_k < LISTED), top_k, LISTED)
    bound = reached_by(best_of_group, wanted, best_key)
    row = _Row(place, logits + place * stride, edits, value_of(best_key), _log_scale(temperature))

    # Where top-k cuts, nobody asks for the weight of the vocabulary, and only tiles with candidates are read.
    num_listed = 0
    weights_of_all = tl.full([IDS], 0, tl.int64)
    weights_listed = tl.full([IDS], 0, tl.int64)
    for start in range(0, tl.where(is_finite(row.best), V, 0), IDS):
        own = start // GROUP + tl.arange(0, IDS // GROUP)
        best_of_tile = tl.max(tl.load(maxima + own, own < GROUPS, lowest), axis=0)
        if (top_k <= 0) | (best_of_tile >= bound):
            ids = start + tl.arange(0, IDS)
            keys, weights = _weighed(row, ids, V)
            is_listed = keys >= bound
            weights_of_all += weights
            weights_listed += tl.where(is_listed, weights, 0)
            ranks = num_listed + tl.cumsum(is_listed.to(tl.int32), axis=0)
            num_listed = tl.max(ranks, axis=0)
            target = place * CAPACITY + ranks - 1
            fits = is_listed & (ranks <= CAPACITY)
            tl.store(workspace.listed_keys + target, keys, fits)
            tl.store(workspace.listed_weights + target, weights, fits)
            tl.store(workspace.listed_ids + target, ids, fits)

    state = workspace.states + place * 5
    tl.store(state, best_key)
    tl.store(state + 1, bound)
    tl.store(state + 2, num_listed)
    tl.store(state + 3, tl.sum(weights_listed, axis=0))
    tl.store(state + 4, tl.sum(weights_of_all, axis=0))


@triton.jit
def _draw_kernel(
    logits, stride, sampling, edits, workspace, token_ids, outcomes,
    V: tl.constexpr, CAPACITY: tl.constexpr, IDS: tl.constexpr,
):  # fmt: skip
    """One row: the cuts, and the draw from what they leave."""
    place = tl.program_id(0).to(tl.int64)
    state = workspace.states + place * 5
    key_type: tl.constexpr = workspace.listed_keys.dtype.element_ty

    temperature, top_k = _temperature_and_top_k(sampling, place, V)
    top_p, min_p = tl.load(sampling.top_p + place), tl.load(sampling.min_p + place)
    best_key, bound = tl.load(state).to(key_type), tl.load(state + 1).to(key_type)
    num_listed, weight_listed, total = tl.load(state + 2), tl.load(state + 3), tl.load(state + 4)
    row = _Row(place, logits + place * stride, edits, value_of(best_key), _log_scale(temperature))
    if not is_finite(row.best):
        tl.store(token_ids + place, 0)
        tl.store(outcomes + place, _NOT_FINITE)
        return
    listed = _Source(
        num_listed <= CAPACITY, num_listed,
        workspace.listed_keys + place * CAPACITY,
        workspace.listed_weights + place * CAPACITY,
        workspace.listed_ids + place * CAPACITY,
    )  # fmt: skip

    # What is left reaches down to the key `low`, and weighs `total`.
    low = tl.full([], lowest_key(key_type), key_type)
    is_near = tl.full([], False, tl.int1)
    if top_k > 0:
        # Past the last one that can be drawn, top-k has nothing to say.
        count = tl.where(bound == lowest_finite_key(key_type), tl.minimum(top_k, num_listed), top_k)
        source = _reading(listed, num_listed >= count, V)
        low, _, _, total = _cut(row, source, low, best_key, count, True, V, IDS)
    if top_p < 1.0:
        share = _share(top_p, total)
        source = _reading(listed, weight_listed >= share, V)
        low, _, each, weight = _cut(row, source, low, best_key, share, False, V, IDS)
        is_near = _is_near(share, weight, each, total)
        total = weight
    floor = tl.minimum(_floor(row.best, temperature, min_p), best_key)  # of NaN it would be above
    if floor > low:
        low = floor
        total, _ = _weight_from(row, _reading(listed, floor >= bound, V), low, V, IDS)

    # The first candidate whose cumulative weight reaches uniform · total.
    share = _share(uniform(sampling, place), total)
    source = _reading(listed, weight_listed >= share, V)
    key, rank, each, weight = _cut(row, source, low, best_key, share, False, V, IDS)
    is_near = is_near | _is_near(share, weight, each, total)

    tl.store(token_ids + place, _id_of(row, source, key, rank, V, IDS))
    tl.store(outcomes + place, is_near.to(tl.int8))


@triton.jit
def _cut(row, source, low, best_key, target, COUNTED: tl.constexpr, V: tl.constexpr, IDS: tl.constexpr):
    """The shortest head of the order that reaches `target` > 0 by weight, COUNTED by number; all from `low`
    on do. Returns the key, the rank among equal ones and the weight of its last one, and its own weight."""
    # From `low` on the target is reached, from `high` on it is not. A turn halves the keys between them, and
    # goes on to the next one that is there.
    high = best_key + 1
    above = tl.full([], 0, tl.int64)
    while low + 1 < high:
        middle = midway(low, high)
        reached = tl.full([IDS], 0, tl.int64)
        higher = tl.full([IDS], highest_key(low.dtype), low.dtype)
        lower = tl.full([IDS], lowest_key(low.dtype), low.dtype)
        for start in range(0, source.length, IDS):
            keys, weights = _candidates(row, source, start, V, IDS)
            is_head = keys >= middle
            reached += tl.where(is_head, 1 if COUNTED else weights, 0)
            higher = tl.minimum(higher, tl.where(is_head, keys, highest_key(low.dtype)))
            lower = tl.maximum(lower, tl.where(is_head, lowest_key(low.dtype), keys))
        amount = tl.sum(reached, axis=0)
        if amount >= target:
            low = tl.min(higher, axis=0)
        else:
            high = tl.max(lower, axis=0) + 1
            above = amount
    weight, each = _weight_from(row, source, low + 1, V, IDS)
    rank = target - above if COUNTED else tl.cdiv(target - above, tl.maximum(each, 1))
    return low, rank, each, weight + rank * each


@triton.jit
def _weight_from(row, source, key, V: tl.constexpr, IDS: tl.constexpr):
    """Of all candidates from `key` on together, and of one whose key is the next lower number."""
    total = tl.full([IDS], 0, tl.int64)
    next_one = tl.full([IDS], 0, tl.int64)
    for start in range(0, source.length, IDS):
        keys, weights = _candidates(row, source, start, V, IDS)
        total += tl.where(keys >= key, weights, 0)
        next_one = tl.maximum(next_one, tl.where(keys == key - 1, weights, 0))
    return tl.sum(total, axis=0), tl.max(next_one, axis=0)


@triton.jit
def _id_of(row, source, key, rank, V: tl.constexpr, IDS: tl.constexpr):
    """Among candidates of this key, in the order of ids, the one of rank 1, 2, …"""
    found = tl.full([], 0, tl.int64)
    before = tl.full([], 0, tl.int64)
    for start in range(0, source.length, IDS):
        keys, _ = _candidates(row, source, start, V, IDS)
        places = start + tl.arange(0, IDS)
        ids = places.to(tl.int32)
        if source.is_listed:
            ids = tl.load(source.ids + places, places < source.length, 0)
        is_equal = keys == key
        ranks = before + tl.cumsum(is_equal.to(tl.int64), axis=0)
        found += tl.sum(tl.where(is_equal & (ranks == rank), ids, 0), axis=0)
        before = tl.max(ranks, axis=0)
    return found


@triton.jit
def _candidates(row, source, start, V: tl.constexpr, IDS: tl.constexpr):
    """Keys and weights of the next candidates; behind the last one the lowest key, and no weight."""
    places = start + tl.arange(0, IDS)
    if source.is_listed:
        is_there = places < source.length
        keys = tl.load(source.keys + places, is_there, lowest_key(source.keys.dtype.element_ty))
        weights = tl.load(source.weights + places, is_there, 0)
    else:
        keys, weights = _weighed(row, places, V)
    return keys, weights


@triton.jit
def _reading(listed, is_enough, V: tl.constexpr):
    """The list if it is complete and enough, else the row."""
    is_listed = listed.is_listed & is_enough
    length = tl.where(is_listed, listed.length, V)
    return _Source(is_listed, length, listed.keys, listed.weights, listed.ids)


@triton.jit
def _weighed(row, ids, V: tl.constexpr):
    """Keys and weights of these ids; beyond the vocabulary the lowest key, and no weight."""
    values = _values(row.place, row.logits, row.edits, ids, V)
    keys = keys_of(values)
    gaps = (values - row.best).to(tl.float32)
    weights = (tl.exp2(gaps * row.log_scale) * _UNITS).to(tl.int64)
    return tl.where(ids < V, keys, lowest_key(keys.dtype)), weights


@triton.jit
def _values(place, logits, edits, ids, V: tl.constexpr):
    """What is drawn from, temperature apart: float32, or edited in float64. -inf beyond the vocabulary."""
    values = tl.load(logits + ids, ids < V, float("-inf"))
    if edits is not None:
        values = values.to(tl.float64)
        for entry in range(tl.load(edits.bias_begins + place), tl.load(edits.bias_begins + place + 1)):
            is_meant = ids == tl.load(edits.bias_token_ids + entry)
            values += tl.where(is_meant, tl.load(edits.biases + entry), 0.0)
        repetition = tl.load(edits.repetition + place)
        presence, frequency = tl.load(edits.presence + place), tl.load(edits.frequency + place)
        if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
            counts = tl.load(edits.output_counts + place * V + ids, ids < V, 0)
            is_seen = (counts > 0) | (tl.load(edits.is_in_prompt + place * V + ids, ids < V, 0) != 0)
            repeated = tl.where(values > 0.0, values / repetition, values * repetition)
            values = tl.where(is_seen, repeated, values)
            taken = presence + frequency * counts.to(tl.float64)
            values -= tl.where(counts > 0, taken, 0.0)
    return values


@triton.jit
def _log_scale(temperature):
    return (1.0 / temperature * _LOG2_E).to(tl.float32)


@triton.jit
def _temperature_and_top_k(sampling, place, V: tl.constexpr):
    """Greedy is top-k of 1, at any temperature. A top-k that cuts nothing is 0."""
    temperature, top_k = tl.load(sampling.temperature + place), tl.load(sampling.top_k + place)
    is_greedy = temperature < _GREEDY_BELOW
    top_k = tl.where(is_greedy, 1, tl.where(top_k < V, top_k, 0))
    return tl.where(is_greedy, 1.0, temperature), top_k.to(tl.int64)


@triton.jit
def _floor(best, temperature, min_p):
    """The lowest key that weighs `min_p` of the best: exact, for it is compared as a logit in float64."""
    least = best.to(tl.float64) + temperature * tl.log(min_p)
    value = least.to(best.dtype)
    return keys_of(value) + (value.to(tl.float64) < least).to(tl.int32)


@triton.jit
def _share(part, total):
    """The least weight that reaches `part` · `total`; the first candidate has some, so it is not 0."""
    return tl.maximum(tl.ceil(part * total.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def uniform(sampling, place):
    """In [0, 1), as in `engine/philox.py`."""
    seed, output_index = tl.load(sampling.seed + place), tl.load(sampling.output_index + place)
    word, _, _, _ = tl.philox(seed, output_index, tl.load(sampling.sibling + place), 0, 0)
    return (word >> 8).to(tl.float64) * 2.0**-24


@triton.jit
def _is_near(target, weight, each, total):
    """Whether a candidate earlier or later might be the one that reaches `target`, if there is such a one."""
    margin = (total.to(tl.float64) * _MARGIN).to(tl.int64)
    before = weight - each
    return ((before > 0) & (target - before < margin)) | ((weight < total) & (weight - target < margin))


def sample(
    logits: Tensor,  # [R, V] float32; rows contiguous
    sampling: RowSampling,
    edits: LogitEdits | None = None,
    *,
    out: Sampled | None = None,
    workspace: Workspace | None = None,  # by `make_workspace`, for such a call
    tile: SampleTile | None = None,
) -> Sampled:
    """One token a row, and whether it is sure.

    No value of a tensor is read on the host and the grids depend on shapes alone, so a CUDA graph may hold
    the call; with `out` and `workspace` given nothing is allocated. Padding rows may hold anything.

    Raises ValueError for tensors that do not fit.
    """
    num_rows, vocab_size = logits.shape
    check_shapes(logits, sampling, edits)
    tile = tile or default_tile(is_edited=edits is not None)
    if out is None:
        out = make_sampled(num_rows, logits.device)
    if workspace is None:
        workspace = make_workspace(logits.shape, logits.device, tile, is_edited=edits is not None)
    group = tile.group_size(vocab_size)
    num_groups = triton.cdiv(vocab_size, group)
    # A sum is rounded as written, so that edited logits are the reference's, and ties the same ones.
    options = {"num_warps": tile.num_warps, "enable_fp_fusion": False}
    _maxima_kernel[(num_rows, triton.cdiv(vocab_size, tile.num_ids))](
        logits, logits.stride(0), edits, workspace.maxima,
        V=vocab_size, GROUPS=num_groups, GROUP=group, IDS=tile.num_ids, **options,
    )  # fmt: skip
    _list_kernel[(num_rows,)](
        logits, logits.stride(0), sampling, edits, workspace,
        V=vocab_size, GROUPS=num_groups, PADDED_GROUPS=triton.next_power_of_2(num_groups), GROUP=group,
        LISTED=tile.num_listed, CAPACITY=tile.capacity, IDS=tile.num_ids, **options,
    )  # fmt: skip
    _draw_kernel[(num_rows,)](
        logits, logits.stride(0), sampling, edits, workspace, out.token_ids, out.outcomes,
        V=vocab_size, CAPACITY=tile.capacity, IDS=tile.num_ids, **options,
    )  # fmt: skip
    return out
