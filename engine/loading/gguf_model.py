"""A Llama-family model in one GGUF file: configuration, vocabulary, chat template and weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from engine.config import ModelConfig
from engine.kv_memory import weights_bytes
from engine.loading.architectures import GGUF, Architecture
from engine.loading.errors import ModelError, shown
from engine.loading.gguf_file import GgufFile, GgufTensor
from engine.loading.gguf_metadata import REMEDY, Metadata, VocabularyMetadata
from engine.loading.gguf_numbers import KEPT_TYPES, stored_weight
from engine.loading.gguf_rope import DIVISORS, gguf_rope
from engine.loading.gguf_vocabulary import gguf_tokenizer
from engine.loading.stored_weight import StoredWeight
from engine.loading.weights import check_shapes, half_split_rows, is_projection, name_of_gguf
from engine.tokenizer import BpeTokenizer

_Number = TypeVar("_Number", bound=np.generic)


class GgufModel:
    """Raises ModelError from the constructor for whatever makes the file unservable."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile.open(path)
        self.served_name = re.sub(r"[-._](I?Q\d\w*|B?F16|F32)$", "", path.stem, flags=re.IGNORECASE)
        self._architecture = _architecture(self._file)
        self.config = _config(self._file, self._architecture, self.served_name)
        tensors = (tensor for tensor in self._file.tensors.values() if tensor.name != DIVISORS)
        check_shapes(self.config, {name_of_gguf(tensor.name): tensor.shape for tensor in tensors})

    @cached_property
    def _tokenizer(self) -> BpeTokenizer:
        return gguf_tokenizer(self._file.metadata, self.config.vocab_size)

    @property
    def tape(self) -> None:
        return None

    def tokenizer(self) -> BpeTokenizer:
        return self._tokenizer

    def chat_template(self) -> str | None:
        template = self._file.metadata.get("tokenizer.chat_template")
        if not isinstance(template, str):
            return None
        if any("\ud800" <= character <= "\udfff" for character in template):
            raise ModelError("tokenizer.chat_template is not UTF-8", REMEDY)
        return template

    @property
    def is_quantized(self) -> bool:
        return any(self._is_kept(tensor) for tensor in self._file.tensors.values())

    def weights(
        self, *, as_stored: bool = False
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | StoredWeight]]:
        for gguf_name, tensor in self._file.tensors.items():
            if gguf_name == DIVISORS:
                continue
            name = name_of_gguf(gguf_name)
            if as_stored and self._is_kept(tensor):
                rows = self._file.rows(gguf_name)
                stored = stored_weight(tensor.type_name, rows, tensor.shape[1])
                yield name, stored.with_rows(partial(self._half_split, name))
            else:
                yield name, self._half_split(name, self._file.tensor(gguf_name))

    def _is_kept(self, tensor: GgufTensor) -> bool:
        return is_projection(name_of_gguf(tensor.name)) and tensor.type_name in KEPT_TYPES

    def _half_split(self, name: str, rows: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        if self._architecture.is_interleaved_in_gguf and name.endswith("self_attn.q_proj.weight"):
            return half_split_rows(rows, self.config.num_heads)
        if self._architecture.is_interleaved_in_gguf and name.endswith("self_attn.k_proj.weight"):
            return half_split_rows(rows, self.config.num_kv_heads)
        return rows

    def weights_bytes(self, dtype: str) -> int:
        return weights_bytes(self.config, dtype)


def _architecture(file: GgufFile) -> Architecture:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF:
        raise ModelError(f"architecture {shown(name)} is not supported", f"supported: {', '.join(GGUF)}")
    return GGUF[name]


def _config(file: GgufFile, architecture: Architecture, model_id: str) -> ModelConfig:
    metadata = Metadata(file.metadata, architecture.name)
    vocabulary = VocabularyMetadata(file.metadata)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("tensor 'token_embd.weight' is missing", REMEDY)
    hidden_size = metadata.positive_int("embedding_length")
    num_heads = metadata.positive_int("attention.head_count")
    head_dim = metadata.positive_int("attention.key_length", hidden_size // num_heads)
    rope, trained = gguf_rope(file, metadata, head_dim=head_dim, default_theta=architecture.default_theta)
    return ModelConfig(
        model_id=model_id,
        revision=file.digest(),
        architecture=architecture.name,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=metadata.positive_int("feed_forward_length"),
        num_layers=metadata.positive_int("block_count"),
        num_heads=num_heads,
        num_kv_heads=metadata.positive_int("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=metadata.positive_float("attention.layer_norm_rms_epsilon"),
        rope=rope,
        max_model_len=trained,
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=vocabulary.token_id("bos"),
        eos_token_ids=vocabulary.eos_token_ids(),
        has_qkv_bias=architecture.has_qkv_bias,
        has_query_key_norm=architecture.has_query_key_norm,
        sliding_window=metadata.optional_int("attention.sliding_window"),
    )
