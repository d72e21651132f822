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

    def encode_piece(self, text: str) -> list[int]:
        """Ids of plain text inside a prompt: never a BOS."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, which may be part of a character; b"" for a control token."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of the tokens; bytes that are no UTF-8 become U+FFFD."""


def _byte_characters() -> dict[str, int]:
    """The printable stand-ins that byte-level vocabularies write bytes with: character → byte.

    Bytes that are printable in Latin-1 stand for themselves, the others take U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_characters()


class BpeTokenizer:
    """A byte-level BPE vocabulary.

    `plain` knows no control token; `tokens[id]` is a token's text as the vocabulary writes it.
    `hidden_ids` are the control tokens whose text is not part of an answer.
    """

    def __init__(
        self,
        plain: RustTokenizer,
        tokens: Sequence[str],
        *,
        control_tokens: Mapping[str, int],
        hidden_ids: frozenset[int],
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        adds_bos: bool,
    ) -> None:
        self._plain = plain
        self._bytes = _bytes_of(tokens, frozenset(control_tokens.values()), hidden_ids)
        self.control_tokens = dict(control_tokens)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self._prefix = [bos_token_id] if adds_bos and bos_token_id is not None else []

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return self._prefix + self.encode_piece(text)

    def encode_piece(self, text: str) -> list[int]:
        return list(self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def decode(self, token_ids: Iterable[int]) -> str:
        return b"".join(self._bytes[token_id] for token_id in token_ids).decode("utf-8", "replace")


def _bytes_of(tokens: Sequence[str], control_ids: frozenset[int], hidden_ids: frozenset[int]) -> list[bytes]:
    return [
        b""
        if token_id in hidden_ids
        else token.encode("utf-8", "surrogateescape")
        if token_id in control_ids
        else bytes(BYTE_OF_CHARACTER[character] for character in token)
        for token_id, token in enumerate(tokens)
    ]


class ByteTokenizer:
    """The vocabulary of tapes: a token is a byte; three control tokens follow."""

    control_tokens: Mapping[str, int] = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
    vocab_size = 259
    bos_token_id = None
    eos_token_ids = (258,)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_piece(self, text: str) -> list[int]:
        return self.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def decode(self, token_ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes(token_id) for token_id in token_ids).decode("utf-8", "replace")
