"""A Llama-family model in one GGUF file: configuration, vocabulary, chat template and weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.config import ModelConfig, RopeConfig
from engine.kv_memory import weights_bytes
from engine.loading.errors import ModelError
from engine.loading.gguf_file import GgufFile
from engine.loading.vocabulary import gguf_tokenizer
from engine.loading.weights import check_shapes, half_split_rows, name_of_gguf
from engine.tokenizer import BpeTokenizer

ARCHITECTURES = ("llama",)
_REMEDY = "give a complete GGUF file of a Llama-family model"


class GgufModel:
    """Raises ModelError from the constructor for whatever makes the file unservable."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile.open(path)
        self.served_name = re.sub(r"[-._](I?Q\d\w*|B?F16|F32)$", "", path.stem, flags=re.IGNORECASE)
        self.config = _config(self._file, self.served_name)
        check_shapes(self.config, {name_of_gguf(t.name): t.shape for t in self._file.tensors.values()})

    @cached_property
    def _tokenizer(self) -> BpeTokenizer:
        tokenizer = gguf_tokenizer(self._file.metadata, self.config.eos_token_ids)
        if tokenizer.vocab_size > self.config.vocab_size:
            raise ModelError(
                f"{tokenizer.vocab_size} tokens in the vocabulary, "
                f"{self.config.vocab_size} rows in the embedding",
                _REMEDY,
            )
        return tokenizer

    @property
    def tape(self) -> None:
        return None

    def tokenizer(self) -> BpeTokenizer:
        return self._tokenizer

    def chat_template(self) -> str | None:
        template = self._file.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        heads = {"self_attn.q_proj": self.config.num_heads, "self_attn.k_proj": self.config.num_kv_heads}
        for gguf_name in self._file.tensors:
            name, weight = name_of_gguf(gguf_name), self._file.tensor(gguf_name)
            for projection, num_heads in heads.items():
                if projection in name:
                    weight = half_split_rows(weight, num_heads)
            yield name, weight

    def weights_bytes(self, dtype: str) -> int:
        return weights_bytes(self.config, dtype)


class _Metadata:
    """Typed reads that name the key when it is missing or of the wrong kind."""

    def __init__(self, values: dict[str, Any], architecture: str) -> None:
        self._values = values
        self._prefix = architecture + "."

    def positive_int(self, key: str, default: int | None = None) -> int:
        value = self._values.get(self._prefix + key, default)
        if not isinstance(value, int) or not 0 < value < 2**31:
            raise ModelError(
                f"GGUF metadata {self._prefix + key} is {value!r}, not a positive integer", _REMEDY
            )
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        value = self._values.get(self._prefix + key, default)
        if not isinstance(value, float) or not 0 < value < float("inf"):
            raise ModelError(
                f"GGUF metadata {self._prefix + key} is {value!r}, not a positive number", _REMEDY
            )
        return value

    def get(self, key: str) -> Any:
        return self._values.get(self._prefix + key)


def _config(file: GgufFile, model_id: str) -> ModelConfig:
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"architecture {architecture!r} is not supported", f"supported: {', '.join(ARCHITECTURES)}"
        )
    metadata = _Metadata(file.metadata, architecture)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("tensor 'token_embd.weight' is missing", _REMEDY)
    hidden_size, num_heads = (
        metadata.positive_int("embedding_length"),
        metadata.positive_int("attention.head_count"),
    )
    head_dim = metadata.positive_int("attention.key_length", hidden_size // num_heads)
    return ModelConfig(
        model_id=model_id,
        revision=file.digest(),
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=metadata.positive_int("feed_forward_length"),
        num_layers=metadata.positive_int("block_count"),
        num_heads=num_heads,
        num_kv_heads=metadata.positive_int("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=metadata.positive_float("attention.layer_norm_rms_epsilon"),
        rope=_rope(file, metadata, head_dim),
        max_model_len=metadata.positive_int("context_length"),
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=_token_id(file.metadata, "bos"),
        eos_token_ids=_eos_token_ids(file.metadata),
    )


def _rope(file: GgufFile, metadata: _Metadata, head_dim: int) -> RopeConfig:
    scaling = metadata.get("rope.scaling.type")
    if scaling not in (None, "none") or "rope_freqs.weight" in file.tensors:
        raise ModelError(
            f"RoPE scaling {scaling or 'llama3'!r} (factor {metadata.get('rope.scaling.factor')}, "
            f"original context {metadata.get('rope.scaling.original_context_length')}) is not supported yet",
            "give a model without RoPE scaling",
        )
    rotated = metadata.positive_int("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelError(f"RoPE over {rotated} of {head_dim} dimensions is not supported", _REMEDY)
    return RopeConfig(theta=metadata.positive_float("rope.freq_base", 10000.0))


def _token_id(metadata: dict[str, Any], which: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{which}_token_id")
    return value if isinstance(value, int) else None


def _eos_token_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    found = (_token_id(metadata, which) for which in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(token_id for token_id in found if token_id is not None))
