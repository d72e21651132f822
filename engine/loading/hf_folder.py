"""A Llama-family model in a Hugging Face folder with one safetensors file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine.config import ModelConfig, RopeConfig
from engine.kv_memory import weights_bytes
from engine.loading.errors import ModelError
from engine.loading.safetensors_file import SafetensorsFile
from engine.loading.vocabulary import tokenizer_from_json
from engine.loading.weights import LM_HEAD, check_shapes
from engine.tokenizer import BpeTokenizer

ARCHITECTURES = ("LlamaForCausalLM",)
_REMEDY = "give a complete folder of a Llama-family model"

_T = TypeVar("_T")
_Size = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e300)]


class _Named(msgspec.Struct, frozen=True):
    """`config.json`, read for its architecture alone: others' files lack what a Llama's must have."""

    architectures: list[str]


class _ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """`config.json`: what a Llama is built from; fields that would change the answer are checked."""

    vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    rms_norm_eps: _Positive
    rope_theta: _Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    max_position_embeddings: _Size
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


class _GenerationConfigFile(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None


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
        named = _read_json(folder / "config.json", _Named)
        if not set(named.architectures) & set(ARCHITECTURES):
            raise ModelError(
                f"architecture {', '.join(named.architectures)!r} is not supported",
                f"supported: {', '.join(ARCHITECTURES)}",
            )
        stated = _read_json(folder / "config.json", _ConfigFile)
        self._file = SafetensorsFile.open(_weights_path(folder))
        self.config = self._config(stated)
        shapes = self._file.shapes()
        if self.config.tie_word_embeddings:
            shapes.pop(LM_HEAD, None)  # some files repeat the embedding under this name
        check_shapes(self.config, shapes)

    def _config(self, stated: _ConfigFile) -> ModelConfig:
        if stated.hidden_act != "silu":
            raise ModelError(
                f"config.json: hidden_act {stated.hidden_act!r} is not supported", "supported: silu"
            )
        num_heads = stated.num_attention_heads
        config_digest = blake2b((self._folder / "config.json").read_bytes(), digest_size=4).hexdigest()
        return ModelConfig(
            model_id=self.served_name,
            revision=f"{self._file.digest()}-{config_digest}",
            architecture="llama",
            vocab_size=stated.vocab_size,
            hidden_size=stated.hidden_size,
            intermediate_size=stated.intermediate_size,
            num_layers=stated.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=stated.num_key_value_heads or num_heads,
            head_dim=stated.head_dim or stated.hidden_size // num_heads,
            rms_norm_eps=stated.rms_norm_eps,
            rope=_rope(stated),
            max_model_len=stated.max_position_embeddings,
            tie_word_embeddings=stated.tie_word_embeddings,
            bos_token_id=stated.bos_token_id,
            eos_token_ids=self._eos_token_ids(stated),
        )

    def _eos_token_ids(self, stated: _ConfigFile) -> tuple[int, ...]:
        path = self._folder / "generation_config.json"
        found = _read_json(path, _GenerationConfigFile).eos_token_id if path.exists() else None
        found = stated.eos_token_id if found is None else found
        return () if found is None else tuple(found) if isinstance(found, list) else (found,)

    @cached_property
    def _tokenizer(self) -> BpeTokenizer:
        tokenizer = tokenizer_from_json(
            self._folder / "tokenizer.json", self.config.bos_token_id, self.config.eos_token_ids
        )
        if tokenizer.vocab_size > self.config.vocab_size:
            raise ModelError(
                f"{tokenizer.vocab_size} tokens in tokenizer.json, "
                f"vocab_size {self.config.vocab_size} in config.json",
                _REMEDY,
            )
        return tokenizer

    @property
    def tape(self) -> None:
        return None

    def tokenizer(self) -> BpeTokenizer:
        return self._tokenizer

    def chat_template(self) -> str | None:
        file = self._folder / "chat_template.jinja"
        if file.exists():
            return file.read_text(encoding="utf-8")
        path = self._folder / "tokenizer_config.json"
        if not path.exists():
            return None
        template = _read_json(path, _TokenizerConfigFile).chat_template
        if isinstance(template, list):
            return next((entry.template for entry in template if entry.name == "default"), None)
        return template

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32] | npt.NDArray[np.float64]]]:
        for name in self._file.shapes():
            if name != LM_HEAD or not self.config.tie_word_embeddings:
                yield name, self._file.tensor(name)

    def weights_bytes(self, dtype: str) -> int:
        return weights_bytes(self.config, dtype)


def _read_json(path: Path, schema: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=schema)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing", _REMEDY) from None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"{path}: {error}", _REMEDY) from None


def _weights_path(folder: Path) -> Path:
    path = folder / "model.safetensors"
    if path.exists():
        return path
    if (folder / "model.safetensors.index.json").exists():
        raise ModelError(
            f"{folder} holds its weights in several files", "give a single-file model.safetensors"
        )
    raise ModelError(f"{path} is missing", _REMEDY)


def _rope(stated: _ConfigFile) -> RopeConfig:
    """transformers 5 writes `rope_parameters`, earlier ones `rope_theta` and `rope_scaling`."""
    parameters = (stated.rope_parameters or {}) | (stated.rope_scaling or {})
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        numbers = ", ".join(
            f"{key} {value}" for key, value in parameters.items() if key not in ("rope_type", "type")
        )
        raise ModelError(
            f"RoPE scaling {kind!r} ({numbers}) is not supported yet", "give a model without RoPE scaling"
        )
    theta = parameters.get("rope_theta", stated.rope_theta or 10000.0)
    if not isinstance(theta, int | float) or not theta > 0:
        raise ModelError(f"config.json: rope_theta is {theta!r}, not a positive number", _REMEDY)
    return RopeConfig(theta=float(theta))
