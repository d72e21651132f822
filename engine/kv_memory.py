"""How much memory a model takes and how long a request may be. Plain arithmetic, no tensors."""

from __future__ import annotations

from math import prod

from engine.config import BLOCK_SIZE, ModelConfig
from engine.dtype import DTYPE_BYTES
from engine.loading.errors import ModelError
from engine.loading.weights import expected_shapes


def weights_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of all weights once loaded; tied embeddings count once.

    On a CPU quantised ones take no more (`kernels/cpu_quant.py`): less, or as much where they are dense.
    """
    return sum(map(prod, expected_shapes(config).values())) * DTYPE_BYTES[dtype]


def kv_bytes_per_block(config: ModelConfig, dtype: str, block_size: int = BLOCK_SIZE) -> int:
    """Bytes of one block's K and V over all layers."""
    values = 2 * config.num_layers * config.num_kv_heads * block_size * config.head_dim
    return values * DTYPE_BYTES[dtype]


def num_blocks_for(kv_memory_bytes: int, block_bytes: int) -> int:
    """Blocks in the pool, the null block included.

    Raises ModelError, with the numbers, when not even one block besides the null block fits.
    """
    num_blocks = kv_memory_bytes // block_bytes
    if num_blocks < 2:
        raise ModelError(
            f"{kv_memory_bytes} bytes of KV memory hold {num_blocks} blocks of {block_bytes} bytes, "
            "2 are needed",
            f"give at least --kv-memory {2 * block_bytes}",
        )
    return num_blocks


def usable_context(config: ModelConfig) -> int:
    """Tokens up to which our attention over everything is what the model was trained with."""
    return min(config.max_model_len, config.sliding_window or config.max_model_len)


def check_max_model_len(config: ModelConfig, asked: int | None, *, allow_untrained: bool = False) -> int:
    """The context in tokens: what was asked, else what the model can be trusted with.

    Raises ModelError, with the numbers, when more is asked and `allow_untrained` is not said.
    """
    usable = usable_context(config)
    if asked is None or asked <= usable:
        return usable if asked is None else asked
    if allow_untrained:
        return asked
    window = "" if config.sliding_window is None else f", sliding window {config.sliding_window}"
    raise ModelError(
        f"{asked} tokens are beyond the {usable} that {config.model_id} was trained for "
        f"({config.rope}, trained context {config.max_model_len}{window})",
        f"give --max-model-len {usable} or less, or --allow-untrained-context to get worse answers beyond it",
    )
