"""How much memory a model takes and how long a request may be. Plain arithmetic, no tensors."""

from __future__ import annotations

from math import prod

from engine.config import BLOCK_SIZE, ModelConfig
from engine.dtype import DTYPE_BYTES
from engine.loading.errors import ModelError
from engine.loading.weights import expected_shapes


def weights_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of all weights once loaded; tied embeddings count once."""
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


def check_max_model_len(config: ModelConfig, asked: int | None) -> int:
    """The context in tokens: what was asked, else what the model was trained for.

    Raises ModelError when that is more than the model was trained for.
    """
    if asked is not None and asked > config.max_model_len:
        raise ModelError(
            f"{asked} tokens are beyond the {config.max_model_len} that {config.model_id} was trained for",
            f"give --max-model-len {config.max_model_len} or less",
        )
    return config.max_model_len if asked is None else asked
