"""What `--quantization` means: which weights have fewer bits, and whether a model can have them. No torch."""

from __future__ import annotations

from typing import Literal, Protocol

from engine.config import ModelConfig
from engine.loading.errors import ModelError

Quantization = Literal["none", "int8", "int4", "stored"]
"""`none`: every file is dequantised to the weights' type. `int8` (a scale a row) and `int4` (a scale and an
offset a group) round the weights that a file's numbers stand for, once more if it is quantised itself.
`stored`: the file's own quantised numbers stay, what else it holds is dequantised. In all of them it is the
projections of attention and MLP that are quantised; embedding, norms, biases and lm_head are not."""

INT4_GROUPS = (64, 32)
"""The first that divides the columns of a matrix is its group."""


class _Source(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    @property
    def tape(self) -> object | None: ...

    @property
    def is_quantized(self) -> bool: ...


def int4_group(num_columns: int) -> int:
    """Raises ModelError for rows that no group divides."""
    for group in INT4_GROUPS:
        if num_columns % group == 0:
            return group
    raise ModelError(
        f"rows of {num_columns} weights are no multiple of {min(INT4_GROUPS)}, the least group of int4",
        "use --quantization int8, or none",
    )


def check_quantization(quantization: Quantization, source: _Source) -> None:
    """Raises ModelError for what cannot be done with this model, before any weight is read."""
    config = source.config
    if source.tape is not None and quantization != "none":
        raise ModelError(f"{config.model_id} has no weights to quantise", "leave out --quantization")
    if quantization == "int4":
        for num_columns in (config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size):
            int4_group(num_columns)
    if quantization == "stored" and not source.is_quantized:
        raise ModelError(
            f"{config.model_id} holds no quantised weights that could stay as they are stored",
            "use --quantization int8, int4 or none",
        )
