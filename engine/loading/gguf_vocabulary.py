"""The vocabulary in a GGUF file's metadata: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from engine.loading.errors import ModelError
from engine.loading.gguf_metadata import VocabularyMetadata
from engine.loading.token_bytes import SPACE_MARK, byte_level_bytes, byte_token, sentencepiece_bytes
from engine.loading.vocabulary import Merge, Vocabulary, build_tokenizer, plain_bpe, without
from engine.tokenizer import BpeTokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_LONGEST_PIECE = 256
"""Characters. Finding the merges of a piece takes the square of its length."""
_REMEDY = "give a file that holds its vocabulary"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLIT_PATTERNS = {
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}",
}


def gguf_tokenizer(values: Mapping[str, Any], vocab_size: int) -> BpeTokenizer:
    """Raises ModelError for a vocabulary that is incomplete or of another kind, naming what it is."""
    metadata = VocabularyMetadata(values)
    kind = metadata.text("model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(
            f"tokenizer {kind!r} (tokenizer.ggml.model) is not supported",
            "give a model with a byte-level ('gpt2') or SentencePiece ('llama') BPE vocabulary",
        )
    tokens = metadata.texts("tokens")
    types = metadata.numbers("token_type", len(tokens)).tolist()
    if kind == "gpt2":
        plain = _byte_level(metadata, tokens, types)
        adds_bos = metadata.text("pre") == "llama-bpe"
    else:
        plain = _sentencepiece(metadata, tokens, types)
        adds_bos = True
    vocabulary = Vocabulary(
        tokens,
        byte_level_bytes if kind == "gpt2" else sentencepiece_bytes,
        control_tokens=_ids_of(tokens, types, _CONTROL, _USER_DEFINED, _UNKNOWN),
        hidden_ids=frozenset(_ids_of(tokens, types, _CONTROL, _UNKNOWN, _UNUSED).values()),
        bos_token_id=metadata.token_id("bos"),
        eos_token_ids=metadata.eos_token_ids(),
        adds_bos=metadata.flag("add_bos_token", adds_bos),
    )
    return build_tokenizer(vocabulary, plain, plain, vocab_size=vocab_size)


def _ids_of(tokens: Sequence[str], types: Sequence[Any], *wanted: int) -> dict[str, int]:
    return {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind in wanted}


def _byte_level(metadata: VocabularyMetadata, tokens: Sequence[str], types: Sequence[Any]) -> RustTokenizer:
    spoken = _ids_of(tokens, types, _NORMAL, _BYTE)
    merges = without(set(tokens) - spoken.keys(), map(_pair, metadata.texts("merges")))
    pre = metadata.text("pre")
    tokenizer = plain_bpe(spoken, merges, ignore_merges=pre == "llama-bpe")
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _pair(merge: str) -> Merge:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(pre: str | None) -> pre_tokenizers.PreTokenizer:
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if pre in _SPLIT_PATTERNS:
        split = pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[pre]), behavior="isolated")
        return pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    supported = ", ".join(["gpt-2", "smollm", *_SPLIT_PATTERNS])
    raise ModelError(
        f"pre-tokenizer {pre!r} (tokenizer.ggml.pre) is not supported", f"supported: {supported}"
    )


def _sentencepiece(
    metadata: VocabularyMetadata, tokens: Sequence[str], types: Sequence[Any]
) -> RustTokenizer:
    """As llama.cpp has it: a space stands in front of text behind every control token."""
    scores = metadata.numbers("scores", len(tokens))
    if not np.isfinite(scores).all():
        raise ModelError("tokenizer.ggml.scores holds numbers that are not finite", _REMEDY)
    pieces, byte_ids = _ids_of(tokens, types, _NORMAL), _ids_of(tokens, types, _BYTE)
    missing = set(range(256)) - {byte_token(token) for token in byte_ids}
    if missing:
        raise ModelError(f"the vocabulary has no token for byte {min(missing)}", _REMEDY)
    tokenizer = plain_bpe(pieces | byte_ids, merges_by_score(pieces, scores), byte_fallback=True)
    spaces = normalizers.Replace(" ", SPACE_MARK)
    if metadata.flag("add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces])
    else:
        tokenizer.normalizer = spaces
    return tokenizer


def merges_by_score(pieces: Mapping[str, int], scores: npt.NDArray[Any]) -> list[Merge]:
    """SentencePiece joins the neighbours whose union scores best: the same as merges in that order.

    Ties are broken as in transformers: the longer left side first, then the longer right side.
    """
    found: list[tuple[float, str, str]] = []
    for piece, piece_id in pieces.items():
        if len(piece) > _LONGEST_PIECE:
            raise ModelError(f"token {piece_id} is longer than {_LONGEST_PIECE} characters", _REMEDY)
        score = float(scores[piece_id])
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        found += [(score, left, right) for left, right in splits if left in pieces and right in pieces]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]
