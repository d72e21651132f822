"""A GGUF file's key-value pairs, read with their types and named in every complaint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.loading.errors import ModelError, shown

REMEDY = "give a complete GGUF file of a Llama-family model"
_VOCABULARY_REMEDY = "give a file that holds its vocabulary"


class Metadata:
    """Keys are given without `architecture` in front. Each read raises ModelError for another type."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        self._values = values
        self._prefix = architecture + "."

    def positive_int(self, key: str, default: int | None = None) -> int:
        value = self._values.get(self._prefix + key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise self._wrong(key, value, "a positive integer")
        return value

    def optional_int(self, key: str) -> int | None:
        return None if self._values.get(self._prefix + key) is None else self.positive_int(key)

    def positive_float(self, key: str, default: float | None = None) -> float:
        value = self.number(key)
        value = default if value is None else value
        if value is None or not 0 < value < float("inf"):
            raise self._wrong(key, value, "a positive number")
        return value

    def number(self, key: str) -> float | None:
        value = self._values.get(self._prefix + key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self._wrong(key, value, "a number")
        return value

    def text(self, key: str) -> str | None:
        value = self._values.get(self._prefix + key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def _wrong(self, key: str, value: object, expected: str) -> ModelError:
        return ModelError(f"GGUF metadata {self._prefix + key} is {shown(value)}, not {expected}", REMEDY)


class VocabularyMetadata:
    """The keys `tokenizer.ggml.*`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, key: str) -> str | None:
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            raise ModelError(
                f"GGUF metadata tokenizer.ggml.{key} is {shown(value)}, not text", _VOCABULARY_REMEDY
            )
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if not isinstance(value, list):
            raise ModelError(f"GGUF metadata tokenizer.ggml.{key} is no list of texts", _VOCABULARY_REMEDY)
        return value

    def numbers(self, key: str, length: int) -> npt.NDArray[Any]:
        """One number for each token."""
        value = self._get(key)
        if not isinstance(value, np.ndarray) or len(value) != length:
            raise ModelError(
                f"GGUF metadata tokenizer.ggml.{key} does not hold {length} numbers", _VOCABULARY_REMEDY
            )
        return value

    def token_id(self, which: str) -> int | None:
        """The id of the token for `bos`, `eos`, …, if there is one."""
        value = self._get(f"{which}_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def eos_token_ids(self) -> tuple[int, ...]:
        found = (self.token_id(which) for which in ("eos", "eot", "eom"))
        return tuple(dict.fromkeys(token_id for token_id in found if token_id is not None))

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        return value if isinstance(value, bool) else default

    def _get(self, key: str) -> Any:
        return self._values.get(f"tokenizer.ggml.{key}")
