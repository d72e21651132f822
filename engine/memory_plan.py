"""How much memory steps take beside weights and KV, before anything is loaded. Plain arithmetic.

An upper bound of what `TorchExecutor.warm_up` measures on a CPU: there freed memory is not always
taken again, so what the parts of a step need is added up.
"""

from __future__ import annotations

from engine.config import EngineConfig, ModelConfig
from engine.dtype import DTYPE_BYTES

GATHERED_TOKENS = 16_384
"""Most tokens whose K and V decodes gather at once (`kernels/cpu.py`), unless one alone has more."""

_LOGIT_BYTES = 44
"""One logit while it is sampled: as the model made it, in float32, bias and penalties on a copy, and
four times in float64."""


def activation_bytes(model: ModelConfig, engine: EngineConfig, dtype: str, kv_dtype: str) -> int:
    """Of the heaviest prefill or batch of decodes; reference mode needs no more."""
    size, kv_size = DTYPE_BYTES[dtype], DTYPE_BYTES[kv_dtype]
    context, budget = engine.max_model_len, min(engine.max_num_batched_tokens, engine.max_model_len)
    heads = model.num_heads + 2 * model.num_kv_heads
    per_token = 4 * model.hidden_size + 3 * heads * model.head_dim + 4 * model.intermediate_size
    # K and V as stored, and once more where they are converted.
    per_gathered = 2 * model.num_kv_heads * model.head_dim * (kv_size + (size if size != kv_size else 0))
    prefill = budget * context * (1 + size) + context * per_gathered  # the mask, as bits and as numbers
    decode = min(engine.max_num_seqs * context, max(GATHERED_TOKENS, context)) * per_gathered
    logits = engine.max_num_seqs * model.vocab_size * _LOGIT_BYTES
    return budget * per_token * size + max(prefill, decode) + logits
