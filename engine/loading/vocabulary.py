"""A file's vocabulary made into a tokenizer that plain text cannot break."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models

from engine.loading.errors import ModelError
from engine.tokenizer import BpeTokenizer

Merge = tuple[str, str]

_REMEDY = "download the model again"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[id]` as the file writes it; `bytes_of` reads a plain one.

    It may raise ValueError or KeyError for one that is not in the vocabulary's alphabet.
    """

    tokens: Sequence[str]
    bytes_of: Callable[[str], bytes]
    control_tokens: Mapping[str, int]
    """Literal → id of what only a chat template can name."""
    hidden_ids: frozenset[int]
    """Tokens whose text is not part of an answer."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool


def build_tokenizer(
    vocabulary: Vocabulary, first: RustTokenizer, inner: RustTokenizer, *, vocab_size: int
) -> BpeTokenizer:
    """`vocab_size` is the model's: ids that it can make and the file does not name have no text.

    Raises ModelError for what would make the tokenizer fail later.
    """
    tokens, bos = vocabulary.tokens, vocabulary.bos_token_id
    if len(tokens) > vocab_size:
        raise ModelError(
            f"{len(tokens)} tokens in the vocabulary, {vocab_size} rows in the embedding", _REMEDY
        )
    for token_id in vocabulary.eos_token_ids if bos is None else (bos, *vocabulary.eos_token_ids):
        if not 0 <= token_id < len(tokens):
            raise ModelError(
                f"BOS or EOS token {token_id} is outside the vocabulary of {len(tokens)}", _REMEDY
            )
    named = [_bytes_of(vocabulary, token_id) for token_id in range(len(tokens))]
    return BpeTokenizer(
        first,
        inner,
        named + [b""] * (vocab_size - len(tokens)),
        control_tokens=vocabulary.control_tokens,
        bos_token_id=bos,
        eos_token_ids=vocabulary.eos_token_ids,
        adds_bos=vocabulary.adds_bos,
    )


def _bytes_of(vocabulary: Vocabulary, token_id: int) -> bytes:
    token = vocabulary.tokens[token_id]
    if token_id in vocabulary.hidden_ids:
        return b""
    if vocabulary.control_tokens.get(token) == token_id:
        return token.encode("utf-8", "surrogateescape")
    try:
        return vocabulary.bytes_of(token)
    except (KeyError, ValueError):
        raise ModelError(
            f"token {token_id} ({token!r}) is not written in the vocabulary's alphabet",
            "give a model with a byte-level or SentencePiece BPE vocabulary",
        ) from None


def plain_bpe(
    vocab: Mapping[str, int],
    merges: Iterable[Merge],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
) -> RustTokenizer:
    """Raises ModelError for a merge of what is not in the vocabulary."""
    try:
        model = models.BPE(
            vocab=dict(vocab), merges=list(merges), ignore_merges=ignore_merges, byte_fallback=byte_fallback
        )
    except Exception as error:  # the package raises plain Exception for an inconsistent vocabulary
        raise ModelError(f"the vocabulary is inconsistent ({error})", _REMEDY) from None
    return RustTokenizer(model)


def without(removed: Set[str], merges: Iterable[Merge]) -> list[Merge]:
    """The merges that neither need nor make a removed token."""
    return [
        (left, right)
        for left, right in merges
        if left not in removed and right not in removed and left + right not in removed
    ]
