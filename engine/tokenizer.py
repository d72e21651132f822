"""Text to token ids and back. Plain text never becomes a control token.

A model's control tokens (its added tokens: turn marks, end of text, tool marks) are taken out of the
vocabulary that text is matched against, so only the chat template can name them. Built from GGUF
metadata or `tokenizer.json` with the `tokenizers` package, or the bytes themselves for tapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tokenizers import Tokenizer as RustTokenizer


class Tokenizer(Protocol):
    """What gateway, chat template and text stream need of a vocabulary."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Literal → id of the tokens that plain text cannot make."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with BOS in front if the model asks for it."""

    def encode_piece(self, text: str, *, is_first: bool = False) -> list[int]:
        """Ids of plain text inside a prompt, or at its beginning: never a BOS."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, which may be part of a character; b"" for a control token."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of the tokens; bytes that are no UTF-8 become U+FFFD."""


class BpeTokenizer:
    """A BPE vocabulary, byte-level or SentencePiece.

    `first` encodes text at the beginning of a prompt and `inner` text behind a control token; neither
    knows a control token. A SentencePiece vocabulary may put a space in front, which `decode` keeps.
    `token_bytes[id]` is what a token adds to an answer.
    """

    def __init__(
        self,
        first: RustTokenizer,
        inner: RustTokenizer,
        token_bytes: Sequence[bytes],
        *,
        control_tokens: Mapping[str, int],
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        adds_bos: bool,
    ) -> None:
        self._first = first
        self._inner = inner
        self._bytes = token_bytes
        self.control_tokens = dict(control_tokens)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self._prefix = [bos_token_id] if adds_bos and bos_token_id is not None else []

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return self._prefix + self.encode_piece(text, is_first=True)

    def encode_piece(self, text: str, *, is_first: bool = False) -> list[int]:
        plain = self._first if is_first else self._inner
        return list(plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def decode(self, token_ids: Iterable[int]) -> str:
        return b"".join(self._bytes[token_id] for token_id in token_ids).decode("utf-8", "replace")


class ByteTokenizer:
    """The vocabulary of tapes: a token is a byte; three control tokens follow."""

    control_tokens: Mapping[str, int] = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
    vocab_size = 259
    bos_token_id = None
    eos_token_ids = (258,)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_piece(self, text: str, *, is_first: bool = False) -> list[int]:
        return self.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def decode(self, token_ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes(token_id) for token_id in token_ids).decode("utf-8", "replace")
