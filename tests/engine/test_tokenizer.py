"""Tokenizers: transformers' ids for ordinary text, exact bytes of tokens, and no control token from text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.loading.errors import ModelError
from engine.loading.source import resolve_model
from engine.loading.vocabulary import gguf_tokenizer, tokenizer_from_json
from engine.tokenizer import BYTE_OF_CHARACTER, ByteTokenizer, Tokenizer
from tests.builders_model import TINY

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden" / "smollm2.json").read_text("utf-8"))

CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return resolve_model("smollm2").tokenizer()


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return resolve_model(str(TINY)).tokenizer()


def metadata(**changes: Any) -> dict[str, Any]:
    """A byte vocabulary with one merge, one control and one user-defined token."""
    tokens = ["<|end|>", "<tool>", *BYTE_OF_CHARACTER, "he"]
    given = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3, 4, *[1] * 257],
        "merges": ["h e"],
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in given.items()}


@pytest.mark.parametrize("row", GOLDEN["texts"], ids=lambda row: repr(row["text"][:20]))
def test_ids_are_those_of_transformers(smollm2: Tokenizer, row: dict[str, Any]) -> None:
    assert smollm2.encode(row["text"]) == row["token_ids"]


@settings(deadline=None)
@given(text=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc", "Cn"])))
def test_text_comes_back(smollm2: Tokenizer, tiny: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, tiny, ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@settings(deadline=None)
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
    tokenizer = gguf_tokenizer(metadata(), (0,))
    assert tokenizer.control_tokens == {"<|end|>": 0, "<tool>": 1}
    assert (tokenizer.token_bytes(0), tokenizer.token_bytes(1)) == (b"", b"<tool>")
    assert 1 not in tokenizer.encode("<tool>")


def test_a_vocabulary_that_looks_up_whole_words_finds_no_control_token_either() -> None:
    tokens = ["<|>", "<tool>", *BYTE_OF_CHARACTER, "he"]
    tokenizer = gguf_tokenizer(metadata(pre="llama-bpe", tokens=tokens), (0,))
    assert 0 not in tokenizer.encode("<|>")
    assert tokenizer.encode("he") == [258]


def test_bos_comes_only_if_the_model_asks() -> None:
    plain = gguf_tokenizer(metadata(bos_token_id=0), (0,))
    asking = gguf_tokenizer(metadata(bos_token_id=0, add_bos_token=True), (0,))
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
    given = metadata(pre=pre, tokens=tokens, token_type=[1] * len(tokens), merges=steps)
    tokenizer = gguf_tokenizer(given, ())
    assert [tokenizer.token_bytes(i).decode() for i in tokenizer.encode("I'll say 1234!\n")] == pieces


def _written(text: str) -> str:
    return "".join(CHARACTER_OF_BYTE[byte] for byte in text.encode())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "tokenizer 'llama'"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken'"),
        ({"tokens": ["a"]}, "no complete vocabulary"),
        ({"merges": ["x yz"]}, "inconsistent"),
        ({"bos_token_id": 999}, "token 999 is outside"),
        (
            {"token_type": [1] * 259, "tokens": ["한", *metadata()["tokenizer.ggml.tokens"][1:]]},
            "byte-level alphabet",
        ),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        gguf_tokenizer(metadata(**changes), (0,))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": {}}}, "not a byte-level BPE"),
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
        tokenizer_from_json(path, None, ())


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
    tokenizer = tokenizer_from_json(path, 1, (2,))
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.encode_piece("hello") == tokenizer.encode("hello")[1:]
