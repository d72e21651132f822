"""A Llama-family model in a Hugging Face folder, its weights in one safetensors file or in several."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy.typing as npt

from engine.config import ModelConfig
from engine.kv_memory import weights_bytes
from engine.loading.architectures import HUGGING_FACE, Architecture
from engine.loading.errors import ModelError
from engine.loading.json_file import read_json
from engine.loading.model_file import is_stated, read_file, read_text
from engine.loading.quantized_folder import QuantizedProjections, read_quantization
from engine.loading.rope_recipe import agreed_parameters, read_rope
from engine.loading.safetensors_shards import open_weights
from engine.loading.stored_weight import StoredWeight
from engine.loading.tokenizer_json import tokenizer_from_json
from engine.loading.weights import LM_HEAD, check_shapes
from engine.tokenizer import BpeTokenizer

_Size = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

_QKV_BIASES = ("q_proj.bias", "k_proj.bias", "v_proj.bias")


class _Named(msgspec.Struct, frozen=True):
    """`config.json`, read for its architecture alone: others' files lack what ours must have."""

    architectures: list[str]


class _ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """`config.json`: what a decoder is built from; fields that would change the answer are checked."""

    vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    rms_norm_eps: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    original_max_position_embeddings: _Size | None = None
    max_position_embeddings: _Size
    sliding_window: _Size | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: _TokenId | None = None
    eos_token_id: _TokenId | list[_TokenId] | None = None
    quantization_config: dict[str, Any] | None = None


class _GenerationConfigFile(msgspec.Struct, frozen=True):
    eos_token_id: _TokenId | list[_TokenId] | None = None


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _TokenizerConfigFile(msgspec.Struct, frozen=True):
    chat_template: str | list[_NamedTemplate] | None = None


class HuggingFaceFolder:
    """Raises ModelError from the constructor for whatever makes the folder unservable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.served_name = folder.resolve().name
        architecture = _architecture(read_json(folder / "config.json", _Named).architectures)
        stated = read_json(folder / "config.json", _ConfigFile)
        quantization = stated.quantization_config and read_quantization(stated.quantization_config)
        self._weights = open_weights(folder, has_words=bool(quantization))
        self._quantized = QuantizedProjections(quantization, self._weights) if quantization else None
        self.config = self._config(stated, architecture)
        shapes = {name: shape for name, shape in self._weights.shapes().items() if self._is_used(name)}
        check_shapes(self.config, shapes | (self._quantized.shapes() if self._quantized else {}))

    def _is_used(self, name: str) -> bool:
        """Some files repeat a tied embedding, or hold angles that were computed once."""
        is_repeated = name == LM_HEAD and self.config.tie_word_embeddings
        is_part = self._quantized is not None and self._quantized.is_part(name)
        is_bias = self.config.has_qkv_bias and name.endswith(_QKV_BIASES)
        is_left_out = is_repeated or (is_part and not is_bias)
        return not is_left_out and not name.endswith(".rotary_emb.inv_freq")

    def _config(self, stated: _ConfigFile, architecture: Architecture) -> ModelConfig:
        _check_built(stated)
        num_heads = stated.num_attention_heads
        head_dim = stated.head_dim or stated.hidden_size // num_heads
        rope, trained = read_rope(
            _rope_parameters(stated),
            head_dim=head_dim,
            max_position_embeddings=stated.max_position_embeddings,
            default_theta=architecture.default_theta,
        )
        config_digest = blake2b(read_file(self._folder / "config.json"), digest_size=4).hexdigest()
        return ModelConfig(
            model_id=self.served_name,
            revision=f"{self._weights.digest()}-{config_digest}",
            architecture=architecture.name,
            vocab_size=stated.vocab_size,
            hidden_size=stated.hidden_size,
            intermediate_size=stated.intermediate_size,
            num_layers=stated.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=stated.num_key_value_heads or num_heads,
            head_dim=head_dim,
            rms_norm_eps=stated.rms_norm_eps,
            rope=rope,
            max_model_len=trained,
            tie_word_embeddings=stated.tie_word_embeddings,
            bos_token_id=stated.bos_token_id,
            eos_token_ids=self._eos_token_ids(stated),
            has_qkv_bias=architecture.has_qkv_bias,
            has_query_key_norm=architecture.has_query_key_norm,
            sliding_window=_window(stated, architecture),
        )

    def _eos_token_ids(self, stated: _ConfigFile) -> tuple[int, ...]:
        path = self._folder / "generation_config.json"
        found = read_json(path, _GenerationConfigFile).eos_token_id if is_stated(path) else None
        found = stated.eos_token_id if found is None else found
        return () if found is None else tuple(found) if isinstance(found, list) else (found,)

    @cached_property
    def _tokenizer(self) -> BpeTokenizer:
        config = self.config
        return tokenizer_from_json(
            self._folder / "tokenizer.json",
            bos_token_id=config.bos_token_id,
            eos_token_ids=config.eos_token_ids,
            vocab_size=config.vocab_size,
        )

    @property
    def tape(self) -> None:
        return None

    def tokenizer(self) -> BpeTokenizer:
        return self._tokenizer

    def chat_template(self) -> str | None:
        """Raises ModelError, naming the file, for one that cannot be read."""
        file = self._folder / "chat_template.jinja"
        if is_stated(file):
            return read_text(file)
        path = self._folder / "tokenizer_config.json"
        if not is_stated(path):
            return None
        template = read_json(path, _TokenizerConfigFile).chat_template
        if isinstance(template, list):
            return next((entry.template for entry in template if entry.name == "default"), None)
        return template

    @property
    def is_quantized(self) -> bool:
        return self._quantized is not None and self._quantized.can_stay

    def weights(self, *, as_stored: bool = False) -> Iterator[tuple[str, npt.NDArray[Any] | StoredWeight]]:
        for name in self._weights.shapes():
            if self._is_used(name):
                yield name, self._weights.tensor(name)
        if self._quantized is not None:
            for name in self._quantized.shapes():
                stays = as_stored and self.is_quantized
                yield name, self._quantized.stored(name) if stays else self._quantized.dequantized(name)

    def weights_bytes(self, dtype: str) -> int:
        return weights_bytes(self.config, dtype)


def _architecture(names: list[str]) -> Architecture:
    for name in names:
        if name in HUGGING_FACE:
            return HUGGING_FACE[name]
    raise ModelError(
        f"architecture {', '.join(names)!r} is not supported", f"supported: {', '.join(HUGGING_FACE)}"
    )


def _check_built(stated: _ConfigFile) -> None:
    """Raises ModelError for a field whose value would change the answers and is not built."""
    for name, built in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        value = getattr(stated, name)
        if value != built:
            raise ModelError(f"config.json: {name} {value!r} is not supported", f"supported: {built!r}")
    for kind in stated.layer_types or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(
                f"config.json: layer type {kind!r} is not supported",
                "supported: 'full_attention', 'sliding_attention'",
            )


def _rope_parameters(stated: _ConfigFile) -> dict[str, Any]:
    """transformers 5 writes all into `rope_parameters`; earlier ones `rope_scaling` and fields beside it."""
    beside = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
    return agreed_parameters(
        {
            "": {name: getattr(stated, name) for name in beside},
            "rope_parameters.": stated.rope_parameters or {},
            "rope_scaling.": stated.rope_scaling or {},
        }
    )


def _window(stated: _ConfigFile, architecture: Architecture) -> int | None:
    if architecture.window == "ignored":
        return None
    if architecture.window == "stated":
        return stated.sliding_window
    has_sliding_layer = (
        "sliding_attention" in stated.layer_types
        if stated.layer_types is not None
        else stated.max_window_layers < stated.num_hidden_layers
    )
    return stated.sliding_window if stated.use_sliding_window and has_sliding_layer else None
