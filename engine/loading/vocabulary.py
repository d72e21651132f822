"""Vocabularies as model files state them, made into tokenizers that plain text cannot break."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from engine.loading.errors import ModelError
from engine.tokenizer import BYTE_OF_CHARACTER, BpeTokenizer

_GGUF_CONTROL, _GGUF_USER_DEFINED = 3, 4

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLIT_PATTERNS = {
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}",
}


def gguf_tokenizer(metadata: Mapping[str, Any], eos_token_ids: tuple[int, ...]) -> BpeTokenizer:
    """Raises ModelError for a vocabulary that is not byte-level BPE, naming what it is."""
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise ModelError(
            f"tokenizer {model!r} (tokenizer.ggml.model) is not supported",
            "give a model with a byte-level BPE vocabulary ('gpt2')",
        )
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    types = metadata.get("tokenizer.ggml.token_type")
    if (
        not isinstance(tokens, list)
        or not isinstance(merges, list)
        or types is None
        or len(types) != len(tokens)
    ):
        raise ModelError(
            "the GGUF file has no complete vocabulary (tokenizer.ggml.tokens, .merges, .token_type)",
            "give a file that holds its vocabulary",
        )
    special = {i for i, kind in enumerate(types) if kind in (_GGUF_CONTROL, _GGUF_USER_DEFINED)}
    vocab = {token: i for i, token in enumerate(tokens) if i not in special}
    plain = _plain_bpe(vocab, [_pair(merge) for merge in merges], ignore_merges=pre == "llama-bpe")
    _set_pre_tokenizer(plain, pre)
    return _tokenizer(
        plain,
        tokens,
        control_tokens={tokens[i]: i for i in sorted(special)},
        hidden_ids=frozenset(i for i in special if types[i] == _GGUF_CONTROL),
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=eos_token_ids,
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
    )


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _plain_bpe(vocab: dict[str, int], merges: list[tuple[str, str]], ignore_merges: bool) -> RustTokenizer:
    try:
        return RustTokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    except Exception as error:  # the package raises plain Exception for an inconsistent vocabulary
        raise ModelError(f"the vocabulary is inconsistent ({error})", "download the model again") from None


def _set_pre_tokenizer(plain: RustTokenizer, pre: object) -> None:
    if pre == "smollm":
        plain.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif pre == "gpt-2":
        plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pre in _SPLIT_PATTERNS:
        plain.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[str(pre)]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        supported = ", ".join(["gpt-2", "smollm", *_SPLIT_PATTERNS])
        raise ModelError(
            f"pre-tokenizer {pre!r} (tokenizer.ggml.pre) is not supported", f"supported: {supported}"
        )
    if pre == "qwen2":
        plain.normalizer = normalizers.NFC()


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


class _TokenizerFile(msgspec.Struct, frozen=True):
    model: _Model
    added_tokens: list[_AddedToken] = []
    decoder: dict[str, Any] | None = None


def tokenizer_from_json(path: Path, bos_token_id: int | None, eos_token_ids: tuple[int, ...]) -> BpeTokenizer:
    """From a `tokenizer.json`. Raises ModelError if it is missing, malformed or not byte-level BPE."""
    try:
        raw = path.read_bytes()
        stated = msgspec.json.decode(raw, type=_TokenizerFile)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read as a tokenizer ({error})", "download the model again"
        ) from None
    if stated.model.type != "BPE" or (stated.decoder or {}).get("type") != "ByteLevel":
        raise ModelError(f"{path} is not a byte-level BPE tokenizer", "give a model whose vocabulary is one")
    for added in stated.added_tokens:
        if added.lstrip or added.rstrip or added.single_word:
            raise ModelError(
                f"{path}: added token {added.content!r} strips its neighbours, which is not supported",
                "give a model whose added tokens match exactly",
            )
    by_id = {i: token for token, i in stated.model.vocab.items()}
    by_id |= {added.id: added.content for added in stated.added_tokens}
    if sorted(by_id) != list(range(len(by_id))):
        raise ModelError(f"{path}: token ids are not 0 to {len(by_id) - 1}", "download the model again")
    return _tokenizer(
        _without_added_tokens(raw, path),
        [by_id[i] for i in range(len(by_id))],
        control_tokens={added.content: added.id for added in stated.added_tokens},
        hidden_ids=frozenset(added.id for added in stated.added_tokens if added.special),
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
        adds_bos=_from_json(raw.decode(), path).encode("").ids == [bos_token_id],
    )


def _without_added_tokens(raw: bytes, path: Path) -> RustTokenizer:
    """The same tokenizer, unable to match an added token or to add one."""
    stated = json.loads(raw)
    for added in stated["added_tokens"]:
        stated["model"]["vocab"].pop(added["content"], None)
    stated["model"]["unk_token"] = None
    stated |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return _from_json(json.dumps(stated), path)


def _from_json(text: str, path: Path) -> RustTokenizer:
    try:
        return RustTokenizer.from_str(text)
    except Exception as error:  # the package raises plain Exception for whatever it cannot build
        raise ModelError(f"{path} cannot be built ({error})", "download the model again") from None


def _tokenizer(
    plain: RustTokenizer,
    tokens: list[str],
    *,
    control_tokens: dict[str, int],
    hidden_ids: frozenset[int],
    bos_token_id: int | None,
    eos_token_ids: tuple[int, ...],
    adds_bos: bool,
) -> BpeTokenizer:
    """Checks ids and characters before a `BpeTokenizer` is made, so that it cannot fail later."""
    control_ids = set(control_tokens.values())
    for token_id, token in enumerate(tokens):
        if token_id not in control_ids and not BYTE_OF_CHARACTER.keys() >= set(token):
            raise ModelError(
                f"token {token_id} ({token!r}) is not written in the byte-level alphabet",
                "give a model with a byte-level BPE vocabulary",
            )
    for token_id in eos_token_ids if bos_token_id is None else (bos_token_id, *eos_token_ids):
        if not 0 <= token_id < len(tokens):
            raise ModelError(
                f"BOS or EOS token {token_id} is outside the vocabulary of {len(tokens)}",
                "download the model again",
            )
    return BpeTokenizer(
        plain,
        tokens,
        control_tokens=control_tokens,
        hidden_ids=hidden_ids,
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
        adds_bos=adds_bos,
    )
