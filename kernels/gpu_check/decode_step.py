"""One decode step of a small layer, from hidden states to tokens, on buffers that stay: can a CUDA graph
hold it, and does its replay compute what the kernels do without one?"""

from __future__ import annotations

import torch

from kernels.attention_decode import paged_decode
from kernels.audit.bench_tensors import BenchTensors
from kernels.cuda_graph import Capture
from kernels.gpu_check.row import Row
from kernels.kv_write import kv_write
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.roofline import BLOCK_SIZE
from kernels.rope import rope
from kernels.sample import sample
from kernels.sample_rows import RowSampling
from kernels.silu_mul import silu_mul

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
HIDDEN = HEADS * HEAD_DIM
MAX_LEN = 4 * BLOCK_SIZE


class DecodeStep:
    """Owns its buffers. Row `i` has `i` + 1 tokens, the last one is padding."""

    def __init__(self, num_rows: int, device: str) -> None:
        tensors = BenchTensors(device)
        self.hidden = tensors.numbers("float32", num_rows, HIDDEN)
        self.token_ids = torch.empty(num_rows, dtype=torch.int64, device=device)
        self._qkv = tensors.numbers("float32", (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN) / HIDDEN**0.5
        self._mlp = tensors.numbers("float32", 2 * HIDDEN, HIDDEN) / HIDDEN**0.5
        self._norm = tensors.numbers("float32", HIDDEN)
        self._cos, self._sin = (tensors.numbers("float32", MAX_LEN, HEAD_DIM // 2) for _ in range(2))
        room = num_rows * MAX_LEN
        self._k_cache, _ = tensors.cache(room, KV_HEADS, HEAD_DIM, "float32")
        self._v_cache, _ = tensors.cache(room, KV_HEADS, HEAD_DIM, "float32")
        self._table = tensors.block_table(num_rows, MAX_LEN // BLOCK_SIZE)
        self._lens = torch.arange(1, num_rows + 1, dtype=torch.int32, device=device)
        self._positions = (self._lens - 1).long()
        blocks = self._table.gather(1, (self._positions // BLOCK_SIZE)[:, None])[:, 0]
        self._slots = blocks.long() * BLOCK_SIZE + self._positions % BLOCK_SIZE
        self._lens[-1], self._slots[-1] = 0, 0
        floats, integers = tensors.filled("float64", 0.9, num_rows), tensors.filled("int32", 0, num_rows)
        seeds = tensors.shuffled(0, num_rows)
        self._sampling = RowSampling(floats, integers, floats, floats * 0, seeds, integers, integers)

    def run(self) -> None:
        num_rows = len(self.hidden)
        normed = rms_norm(self.hidden, self._norm, 1e-5)
        heads = (normed @ self._qkv.T).view(num_rows, -1, HEAD_DIM)
        rotated = rope(heads[:, :-KV_HEADS], self._cos, self._sin, self._positions)
        kv_write(rotated[:, HEADS:], heads[:, -KV_HEADS:], self._k_cache, self._v_cache, self._slots)
        attended = paged_decode(
            rotated[:, :HEADS], self._k_cache, self._v_cache, self._table, self._lens, HEAD_DIM**-0.5
        ).view(num_rows, -1)
        normed, total = add_rms_norm(attended, self.hidden, self._norm, 1e-5)
        logits = total + silu_mul(normed @ self._mlp.T)
        self.token_ids.copy_(sample(logits, self._sampling).token_ids)


def check(num_rows: int, device: str, capture: Capture) -> Row:
    """Captured on some hidden states, replayed on others."""
    step = DecodeStep(num_rows, device)
    replay = capture(step.run)
    step.hidden.neg_()
    replay()
    replayed = step.token_ids.tolist()
    step.token_ids.zero_()
    step.run()
    return row(num_rows, replayed, step.token_ids.tolist())


def row(num_rows: int, replayed: list[int], eager: list[int]) -> Row:
    num_other = sum(one != other for one, other in zip(replayed, eager, strict=True))
    fault = f"{num_other} of {num_rows} tokens are not those of the kernels one by one" if num_other else None
    return Row("graph", f"decode step of {num_rows}", f"{num_rows} tokens", fault=fault)
