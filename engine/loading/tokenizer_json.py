"""The vocabulary in a `tokenizer.json`: byte-level BPE or SentencePiece BPE."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as RustTokenizer

from engine.loading.errors import ModelError
from engine.loading.model_file import read_file
from engine.loading.token_bytes import byte_level_bytes, byte_token, sentencepiece_bytes
from engine.loading.vocabulary import Merge, Vocabulary, build_tokenizer, without
from engine.tokenizer import BpeTokenizer

_REMEDY = "download the model again"


class _AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class _Model(msgspec.Struct, frozen=True):
    type: str
    vocab: dict[str, int]
    merges: list[str | Merge]
    byte_fallback: bool = False


class _Decoder(msgspec.Struct, frozen=True):
    type: str
    decoders: list[_Decoder] = []

    def steps(self) -> set[str]:
        return {self.type, *(step.type for step in self.decoders)}


class _TokenizerFile(msgspec.Struct, frozen=True):
    model: _Model
    added_tokens: list[_AddedToken] = []
    decoder: _Decoder | None = None

    @property
    def is_byte_level(self) -> bool:
        return self.decoder is not None and "ByteLevel" in self.decoder.steps()

    @property
    def is_sentencepiece(self) -> bool:
        has_bytes = self.decoder is not None and "ByteFallback" in self.decoder.steps()
        return has_bytes and self.model.byte_fallback


class _Kind(msgspec.Struct, frozen=True):
    """Read first: another kind's vocabulary has another shape."""

    type: str


class _AnyFile(msgspec.Struct, frozen=True):
    model: _Kind


def tokenizer_from_json(
    path: Path, *, bos_token_id: int | None, eos_token_ids: tuple[int, ...], vocab_size: int
) -> BpeTokenizer:
    """Raises ModelError if the file is missing, malformed or of another kind."""
    text, whole, stated = _read(path)
    for added in stated.added_tokens:
        if added.lstrip or added.rstrip or added.single_word:
            raise ModelError(
                f"{path}: added token {added.content!r} strips its neighbours, which is not supported",
                "give a model whose added tokens match exactly",
            )
    by_id = {i: token for token, i in stated.model.vocab.items()}
    by_id |= {added.id: added.content for added in stated.added_tokens}
    if sorted(by_id) != list(range(len(by_id))):
        raise ModelError(f"{path}: token ids are not 0 to {len(by_id) - 1}", _REMEDY)
    if stated.is_sentencepiece:
        _check_byte_tokens(path, stated)
    plain = _without_added_tokens(whole, stated)
    vocabulary = Vocabulary(
        [by_id[i] for i in range(len(by_id))],
        byte_level_bytes if stated.is_byte_level else sentencepiece_bytes,
        control_tokens={added.content: added.id for added in stated.added_tokens},
        hidden_ids=frozenset(added.id for added in stated.added_tokens if added.special),
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
        adds_bos=_ids_of_nothing(text, path) == [bos_token_id],
    )
    with _refusing(path):
        first = RustTokenizer.from_str(json.dumps(plain))
        inner = RustTokenizer.from_str(json.dumps(_behind_a_control_token(plain)))
    return build_tokenizer(vocabulary, first, inner, vocab_size=vocab_size)


def _read(path: Path) -> tuple[str, dict[str, Any], _TokenizerFile]:
    """The file as text, all that it says, and what of it is understood here."""
    raw = read_file(path)
    try:
        text = raw.decode()
        whole: dict[str, Any] = json.loads(text)
        kind = msgspec.json.decode(raw, type=_AnyFile).model.type
        stated = msgspec.json.decode(raw, type=_TokenizerFile) if kind == "BPE" else None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as a tokenizer ({error})", _REMEDY) from None
    if stated is None or not (stated.is_byte_level or stated.is_sentencepiece):
        raise ModelError(
            f"{path} is not a byte-level BPE tokenizer, nor SentencePiece with byte fallback",
            "give a model whose vocabulary is one",
        )
    return text, whole, stated


def _check_byte_tokens(path: Path, stated: _TokenizerFile) -> None:
    missing = set(range(256)) - {byte_token(token) for token in stated.model.vocab}
    if missing:
        raise ModelError(f"{path} has no token for byte {min(missing)}", _REMEDY)


def _without_added_tokens(whole: dict[str, Any], stated: _TokenizerFile) -> dict[str, Any]:
    """The same tokenizer, unable to match an added token, to make one or to add one."""
    added = {token.content for token in stated.added_tokens}
    pairs = [_pair(merge) for merge in stated.model.merges]
    model = whole["model"] | {
        "vocab": {token: i for token, i in stated.model.vocab.items() if token not in added},
        "merges": without(added, pairs),
        "unk_token": None,
    }
    return whole | {
        "model": model,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _pair(merge: str | Merge) -> Merge:
    if not isinstance(merge, str):
        return merge
    left, _, right = merge.partition(" ")
    return left, right


def _behind_a_control_token(plain: dict[str, Any]) -> dict[str, Any]:
    """`Metaspace` may put a space in front of the first text only."""
    pre_tokenizer = plain.get("pre_tokenizer")
    if not isinstance(pre_tokenizer, dict) or pre_tokenizer.get("prepend_scheme") != "first":
        return plain
    return plain | {"pre_tokenizer": pre_tokenizer | {"prepend_scheme": "never"}}


def _ids_of_nothing(text: str, path: Path) -> list[int]:
    """What the model itself puts around an empty prompt."""
    with _refusing(path):
        tokenizer = RustTokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return list(tokenizer.encode("").ids)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """The package raises plain Exception for what it cannot build, and BaseException where it panics."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelError(f"{path} cannot be built ({error})", _REMEDY) from None
