"""How much memory steps take beside weights and KV, before anything is loaded. Plain arithmetic.

An upper bound of what `TorchExecutor.warm_up` measures on a CPU: there freed memory is not always
taken again, so what the parts of a step need is added up.
"""

from __future__ import annotations

from engine.config import EngineConfig, ModelConfig
from engine.dtype import DTYPE_BYTES

GATHERED_TOKENS = 16_384
"""Most tokens whose K and V decodes gather at once (`kernels/cpu.py`), unless one alone has more."""

TILE, SPLIT = 16, 128
"""Rows and keys that reference mode computes attention in (`kernels/deterministic.py`)."""
_HELD_SPLITS = 6
"""Times that it holds a split of K or V: each as stored and widened, and places that are not taken again."""

_LOGIT_BYTES = 44
"""One logit while it is sampled: as the model made it, in float32, bias and penalties on a copy, and
four times in float64."""


def activation_bytes(
    model: ModelConfig, engine: EngineConfig, dtype: str, kv_dtype: str, *, deterministic: bool = False
) -> int:
    """Of the heaviest step: a prefill beside a batch of decodes."""
    size, kv_size = DTYPE_BYTES[dtype], DTYPE_BYTES[kv_dtype]
    context, budget = engine.max_model_len, min(engine.max_num_batched_tokens, engine.max_model_len)
    heads = model.num_heads + 2 * model.num_kv_heads
    per_token = 4 * model.hidden_size + 3 * heads * model.head_dim + 4 * model.intermediate_size
    # K and V as stored, and once more where they are converted.
    per_gathered = 2 * model.num_kv_heads * model.head_dim * (kv_size + (size if size != kv_size else 0))
    prefill = budget * context * (1 + size) + context * per_gathered  # the mask, as bits and as numbers
    decode = min(engine.max_num_seqs * context, max(GATHERED_TOKENS, context)) * per_gathered
    logits = engine.max_num_seqs * model.vocab_size * _LOGIT_BYTES
    tiles = _tiles_bytes(model, engine, size) if deterministic else 0
    return budget * per_token * size + prefill + decode + logits + tiles


def _tiles_bytes(model: ModelConfig, engine: EngineConfig, size: int) -> int:
    """Of reference mode: where each tile finds its keys (8 bytes), which of them its rows and the whole
    tile see, and the keys and values of one split."""
    rows = engine.max_num_batched_tokens * model.num_heads // model.num_kv_heads
    tiles = (rows // TILE + engine.max_num_seqs) * model.num_kv_heads
    return tiles * (engine.max_model_len * (8 + TILE + 1) + SPLIT * model.head_dim * size * _HELD_SPLITS)
