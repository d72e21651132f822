"""A tape as a model source: a vocabulary, a chat template and scripted answers, no weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import msgspec
import numpy.typing as npt

from engine.config import ModelConfig, RopeConfig
from engine.tape import TapeSpec
from engine.tokenizer import ByteTokenizer, Tokenizer

SERVED_NAME = "tape"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TapeModel:
    """`tokenizer` and `chat_template` are the byte vocabulary's unless another one's are given."""

    served_name = SERVED_NAME

    def __init__(
        self, tape: TapeSpec, tokenizer: Tokenizer | None = None, chat_template: str | None = CHAT_TEMPLATE
    ) -> None:
        self._tokenizer = tokenizer or ByteTokenizer()
        self._chat_template = chat_template
        self.tape = replace(tape, eos_token_ids=self._tokenizer.eos_token_ids)

    @cached_property
    def config(self) -> ModelConfig:
        """KV sizes of a 135M-parameter model, so that pools have the number of blocks of a real one."""
        script = msgspec.json.encode(self.tape.tapes, order="sorted")
        return ModelConfig(
            model_id=SERVED_NAME,
            revision=blake2b(script, digest_size=16).hexdigest(),
            architecture="tape",
            vocab_size=self._tokenizer.vocab_size,
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            rms_norm_eps=1e-5,
            rope=RopeConfig(theta=100000.0),
            max_model_len=self.tape.max_model_len,
            tie_word_embeddings=True,
            bos_token_id=self._tokenizer.bos_token_id,
            eos_token_ids=self._tokenizer.eos_token_ids,
        )

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def chat_template(self) -> str | None:
        return self._chat_template

    @property
    def is_quantized(self) -> bool:
        return True  # it has no weights that could be of another format

    def weights(self, *, as_stored: bool = False) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        return iter(())

    def weights_bytes(self, dtype: str) -> int:
        return 0
