"""Tokenizers: transformers' ids for ordinary text, exact bytes of tokens, and no control token from text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.loading.errors import ModelError
from engine.loading.gguf_vocabulary import gguf_tokenizer
from engine.loading.source import resolve_model
from engine.loading.token_bytes import BYTE_OF_CHARACTER
from engine.loading.tokenizer_json import tokenizer_from_json
from engine.tokenizer import ByteTokenizer, Tokenizer
from tests.builders_model import TINY

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden" / "smollm2.json").read_text("utf-8"))

CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return resolve_model("smollm2").tokenizer()


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return resolve_model(str(TINY)).tokenizer()


def speak(given: dict[str, Any], vocab_size: int = 1000) -> Tokenizer:
    return gguf_tokenizer(given, vocab_size)


def metadata(**changes: Any) -> dict[str, Any]:
    """A byte vocabulary with one merge, one control and one user-defined token."""
    tokens = ["<|end|>", "<tool>", *BYTE_OF_CHARACTER, "he"]
    given = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3, 4, *[1] * 257],
        "merges": ["h e"],
        "eos_token_id": 0,
        **changes,
    }
    return as_gguf(given)


def read_json_file(path: Path, *, bos_token_id: int | None = None, vocab_size: int = 1000) -> Tokenizer:
    return tokenizer_from_json(path, bos_token_id=bos_token_id, eos_token_ids=(2,), vocab_size=vocab_size)


def as_gguf(given: dict[str, Any]) -> dict[str, Any]:
    """As a file's reader hands it over: lists of numbers as arrays."""
    return {
        f"tokenizer.ggml.{key}": np.array(value) if _is_numbers(value) else value
        for key, value in given.items()
    }


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, int | float) for item in value)


@pytest.mark.parametrize("row", GOLDEN["texts"], ids=lambda row: repr(row["text"][:20]))
def test_ids_are_those_of_transformers(smollm2: Tokenizer, row: dict[str, Any]) -> None:
    assert smollm2.encode(row["text"]) == row["token_ids"]


@given(text=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc", "Cn"])))
def test_text_comes_back(smollm2: Tokenizer, tiny: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, tiny, ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@given(
    parts=st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|", "|>", "a", "\n"]))
)
def test_text_never_becomes_a_control_token(smollm2: Tokenizer, tiny: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    for tokenizer in (smollm2, tiny, ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert not set(ids) & set(tokenizer.control_tokens.values())
        assert tokenizer.decode(ids) == text


def test_control_tokens_have_no_bytes(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.control_tokens["<|im_end|>"] == 2
    assert {smollm2.token_bytes(i) for i in smollm2.control_tokens.values()} == {b""}


def test_a_token_may_be_part_of_a_character(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("🥞")
    assert len(ids) > 1
    assert smollm2.decode(ids[:1]) == "\ufffd"
    assert smollm2.decode(ids) == "🥞"


def test_user_defined_tokens_show_their_text_but_text_does_not_make_them() -> None:
    tokenizer = speak(metadata())
    assert tokenizer.control_tokens == {"<|end|>": 0, "<tool>": 1}
    assert (tokenizer.token_bytes(0), tokenizer.token_bytes(1)) == (b"", b"<tool>")
    assert 1 not in tokenizer.encode("<tool>")


def test_a_vocabulary_that_looks_up_whole_words_finds_no_control_token_either() -> None:
    tokens = ["<|>", "<tool>", *BYTE_OF_CHARACTER, "he"]
    tokenizer = speak(metadata(pre="llama-bpe", tokens=tokens))
    assert 0 not in tokenizer.encode("<|>")
    assert tokenizer.encode("he") == [258]


def test_a_control_token_that_merges_would_make_is_not_made() -> None:
    tokenizer = speak(metadata(token_type=[3, 4, *[1] * 256, 3]))
    assert tokenizer.control_tokens["he"] == 258
    assert 258 not in tokenizer.encode("he")
    assert tokenizer.decode(tokenizer.encode("he")) == "he"


def test_bos_comes_only_if_the_model_asks() -> None:
    plain = speak(metadata(bos_token_id=0))
    asking = speak(metadata(bos_token_id=0, add_bos_token=True))
    assert asking.encode("he") == [0, *plain.encode("he")]
    assert asking.encode_piece("he") == plain.encode("he") == [258]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'ll", " say", " 1234", "!", "\n"]),
        ("smollm", ["I", "'ll", " say", " ", "1", "2", "3", "4", "!", "\n"]),
        ("llama-bpe", ["I", "'ll", " say", " ", "123", "4", "!\n"]),
        ("qwen2", ["I", "'ll", " say", " ", "1", "2", "3", "4", "!\n"]),
    ],
)
def test_pre_tokenizers_cut_where_the_model_was_trained_to(pre: str, pieces: list[str]) -> None:
    # Every piece is a token of its own, and so is what would come of cutting elsewhere.
    wholes = ["I'll", "'ll", " say", " 1234", " 123", "1234", "123", "!\n", "say!", " 1", "12"]
    merged = [_written(whole) for whole in wholes]
    steps = list(dict.fromkeys(m[:i] + " " + m[i] for m in merged for i in range(1, len(m))))
    prefixes = list(dict.fromkeys(step.replace(" ", "") for step in steps))
    tokens = [*BYTE_OF_CHARACTER, *prefixes]
    given = metadata(pre=pre, tokens=tokens, token_type=[1] * len(tokens), merges=steps, eos_token_id=None)
    tokenizer = speak(given)
    assert [tokenizer.token_bytes(i).decode() for i in tokenizer.encode("I'll say 1234!\n")] == pieces


def _written(text: str) -> str:
    return "".join(CHARACTER_OF_BYTE[byte] for byte in text.encode())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "tokenizer 't5'"),
        ({"model": 3}, "model is 3, not text"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken'"),
        ({"pre": None}, "pre-tokenizer None"),
        ({"pre": ["qwen2"]}, r"pre is \['qwen2'\], not text"),
        ({"tokens": 5}, "tokens is no list of texts"),
        ({"tokens": [1, 2]}, "tokens is no list of texts"),
        ({"tokens": ["a"]}, "token_type does not hold 1 numbers"),
        ({"token_type": None}, "token_type does not hold 259 numbers"),
        ({"token_type": ["1"] * 259}, "token_type does not hold 259 numbers"),
        ({"merges": None}, "merges is no list of texts"),
        ({"merges": ["x yz"]}, "inconsistent"),
        ({"merges": ["h\udcff e"]}, "inconsistent"),
        ({"bos_token_id": 999}, "token 999 is outside"),
        ({"eos_token_id": -1}, "token -1 is outside"),
        (
            {"token_type": [1] * 259, "tokens": ["한", *metadata()["tokenizer.ggml.tokens"][1:]]},
            "token 0 .* is not written in the vocabulary's alphabet",
        ),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        speak(metadata(**changes))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}, "not a byte-level BPE"),
        ({"model": {"type": "BPE", "vocab": {"a": 5}, "merges": []}}, "token ids are not 0 to 3"),
        ({"decoder": None}, "not a byte-level BPE"),
        ({"model": 3}, "cannot be read as a tokenizer"),
    ],
)
def test_a_tokenizer_json_that_cannot_be_spoken_is_refused(
    tmp_path: Path, edit: dict[str, Any], message: str
) -> None:
    stated = json.loads((TINY / "tokenizer.json").read_text("utf-8"))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(stated | edit), "utf-8")
    with pytest.raises(ModelError, match=message):
        read_json_file(path)


def test_a_post_processor_that_adds_bos_is_obeyed(tmp_path: Path) -> None:
    stated = json.loads((TINY / "tokenizer.json").read_text("utf-8"))
    stated["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(stated), "utf-8")
    tokenizer = read_json_file(path, bos_token_id=1)
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.encode_piece("hello") == tokenizer.encode("hello")[1:]
