"""The families' kinds of vocabulary: transformers' ids from either format, exact bytes, no forged marks.

Vocabularies and ids are made by `tests/data/families/make_tokenizers.py`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat_template import ChatMessage, ChatTemplate
from engine.loading.errors import ModelError
from engine.loading.gguf_vocabulary import gguf_tokenizer, merges_by_score
from engine.loading.tokenizer_json import tokenizer_from_json
from engine.tokenizer import Tokenizer

FAMILIES = Path(__file__).parents[1] / "data" / "families"
GOLDEN = json.loads((FAMILIES / "tokens.json").read_text("utf-8"))
TEXTS = GOLDEN["texts"]
VOCAB_SIZE = 700
SPACED = ("llama2", "llama2 gguf")
"""Kinds that put a space in front of every text."""


def from_json(name: str, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    bos = {"llama3": 483}.get(name, 1)
    return tokenizer_from_json(
        FAMILIES / f"{name}.json", bos_token_id=bos, eos_token_ids=(2,), vocab_size=vocab_size
    )


def byte_level_gguf(name: str, pre: str, **changes: Any) -> dict[str, Any]:
    """The vocabulary of a `tokenizer.json` as GGUF metadata."""
    stated = json.loads((FAMILIES / f"{name}.json").read_text("utf-8"))
    by_id = {i: (token, 1) for token, i in stated["model"]["vocab"].items()}
    by_id |= {
        token["id"]: (token["content"], 3 if token["special"] else 4) for token in stated["added_tokens"]
    }
    tokens, types = zip(*(by_id[i] for i in range(len(by_id))), strict=True)
    given = {
        "model": "gpt2",
        "pre": pre,
        "tokens": list(tokens),
        "token_type": np.array(types, np.int32),
        "merges": [" ".join(pair) for pair in stated["model"]["merges"]],
        "bos_token_id": by_name(stated, "<|begin_of_text|>"),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (given | changes).items()}


def by_name(stated: dict[str, Any], content: str) -> int | None:
    return next((token["id"] for token in stated["added_tokens"] if token["content"] == content), None)


def sentencepiece_gguf(**changes: Any) -> dict[str, Any]:
    stated = GOLDEN["sentencepiece"]
    given = {
        "model": "llama",
        "tokens": list(stated["pieces"]),
        "scores": np.array(stated["scores"], np.float32),
        "token_type": np.array(stated["types"], np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (given | changes).items()}


TOKENIZERS: dict[str, Tokenizer] = {
    "qwen2": from_json("qwen2"),
    "qwen2 gguf": gguf_tokenizer(byte_level_gguf("qwen2", "qwen2"), VOCAB_SIZE),
    "llama3": from_json("llama3"),
    "llama3 gguf": gguf_tokenizer(byte_level_gguf("llama3", "llama-bpe"), VOCAB_SIZE),
    "llama2": from_json("llama2"),
    "llama2 gguf": gguf_tokenizer(sentencepiece_gguf(), VOCAB_SIZE),
    "mistral": from_json("mistral"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_transformers(name: str) -> None:
    ids = [TOKENIZERS[name].encode(text) for text in TEXTS]
    assert ids == GOLDEN[name.removesuffix(" gguf")]


def test_sentencepiece_itself_and_transformers_agree_on_what_is_compared() -> None:
    assert GOLDEN["llama2"] == GOLDEN["llama2 by transformers"]
    assert GOLDEN["llama2"] != GOLDEN["mistral"]


@pytest.mark.parametrize("name", ["llama2", "llama2 gguf", "mistral"])
def test_text_behind_a_control_token_is_spaced_as_in_transformers(name: str) -> None:
    ids = ChatTemplate(GOLDEN["chat"], TOKENIZERS[name]).encode([])
    assert list(ids) == GOLDEN[f"{name.removesuffix(' gguf')} chat"]


def test_the_first_text_of_a_prompt_is_spaced_though_no_control_token_is_in_front() -> None:
    mistral = TOKENIZERS["mistral"]
    first, inner = mistral.encode_piece("mill", is_first=True), mistral.encode_piece("mill")
    assert (mistral.decode(first), mistral.decode(inner)) == (" mill", "mill")
    assert list(ChatTemplate("mill</s>mill", mistral).encode([])) == [*first, 2, *inner]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_text_comes_back(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode_piece(text)
    expected = unicodedata.normalize("NFC", text) if name.startswith("qwen2") else text
    if name in SPACED and text:
        expected = " " + text
    assert tokenizer.decode(ids) == expected
    assert b"".join(map(tokenizer.token_bytes, ids)) == expected.encode()


MARKS = ["<s>", "</s>", "<unk>", "<|im_end|>", "<|eot_id|>", "<think>", "<|begin_of_text|>", "<0x0A>"]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60)
@given(parts=st.lists(st.sampled_from([*MARKS, "<", "s", ">", "</", "<|", " ", "\n", "\u2581"])))
def test_text_never_becomes_a_control_token(name: str, parts: list[str]) -> None:
    tokenizer, text = TOKENIZERS[name], "".join(parts)
    control_ids = set(tokenizer.control_tokens.values())
    assert control_ids
    assert not control_ids & set(tokenizer.encode_piece(text))
    template = ChatTemplate("{{ messages[0].content }}", tokenizer)
    assert not control_ids & set(template.encode([ChatMessage("user", text)]))
    assert text.replace("\u2581", " ") in tokenizer.decode(tokenizer.encode_piece(text)).replace(
        "\u2581", " "
    )


@pytest.mark.parametrize("name", ["llama2", "llama2 gguf", "mistral"])
def test_sentencepiece_tokens_have_exact_bytes(name: str) -> None:
    tokenizer, pieces = TOKENIZERS[name], GOLDEN["sentencepiece"]["pieces"]
    assert [tokenizer.token_bytes(i) for i in range(3)] == [b"", b"", b""]
    assert [tokenizer.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.token_bytes(pieces.index("▁the")) == b" the"
    assert tokenizer.token_bytes(pieces.index("▁")) == b" "


def test_a_typed_byte_token_is_five_characters_not_a_byte() -> None:
    for name in ("llama2", "llama2 gguf", "mistral"):
        ids = TOKENIZERS[name].encode_piece("<0x0A>")
        assert b"".join(map(TOKENIZERS[name].token_bytes, ids)).strip() == b"<0x0A>"


def test_ids_that_the_model_can_make_and_the_file_does_not_name_have_no_text() -> None:
    tokenizer = from_json("qwen2", vocab_size=600)
    assert tokenizer.vocab_size == 600
    assert tokenizer.token_bytes(599) == b""
    with pytest.raises(ModelError, match="524 tokens in the vocabulary, 500 rows in the embedding"):
        from_json("qwen2", vocab_size=500)


def test_unused_tokens_have_no_text_and_no_text_makes_them() -> None:
    given = byte_level_gguf("qwen2", "qwen2")
    river = given["tokenizer.ggml.tokens"].index("Ġriver")
    assert TOKENIZERS["qwen2 gguf"].encode(" river") == [river]
    given["tokenizer.ggml.token_type"][river] = 5
    tokenizer = gguf_tokenizer(given, VOCAB_SIZE)
    assert tokenizer.token_bytes(river) == b""
    assert river not in tokenizer.encode(" river")
    assert tokenizer.decode(tokenizer.encode(" river")) == " river"
    assert "Ġriver" not in tokenizer.control_tokens


def test_bos_and_the_space_in_front_are_the_kinds_own_unless_the_file_says_otherwise() -> None:
    plain = gguf_tokenizer(sentencepiece_gguf(add_bos_token=False, add_space_prefix=False), VOCAB_SIZE)
    assert plain.decode(plain.encode("mill")) == "mill"
    assert gguf_tokenizer(byte_level_gguf("llama3", "llama-bpe"), VOCAB_SIZE).encode("") == [483]
    assert gguf_tokenizer(byte_level_gguf("llama3", "qwen2"), VOCAB_SIZE).encode("") == []


def test_merges_come_in_the_order_of_their_pieces_scores() -> None:
    scores = np.array([0.0, 0.0, -1.0, -3.0, -2.0])
    pieces = {"a": 0, "b": 1, "ab": 2, "aab": 3, "aa": 4}
    assert merges_by_score(pieces, scores) == [("a", "b"), ("a", "a"), ("aa", "b"), ("a", "ab")]


def without_byte_10() -> list[str]:
    return [piece if piece != "<0x0A>" else "<0x0a>" for piece in GOLDEN["sentencepiece"]["pieces"]]


def infinite_score() -> np.ndarray[Any, Any]:
    return np.array([np.inf, *GOLDEN["sentencepiece"]["scores"][1:]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores does not hold 520 numbers"),
        ({"scores": np.zeros(3)}, "scores does not hold 520 numbers"),
        ({"scores": np.full(520, np.nan)}, "scores holds numbers that are not finite"),
        ({"scores": infinite_score()}, "scores holds numbers that are not finite"),
        ({"tokens": without_byte_10()}, "has no token for byte 10"),
        ({"tokens": ["x" * 257, *["a"] * 519], "token_type": np.ones(520)}, "has no token for byte 0"),
        ({"tokens": [*GOLDEN["sentencepiece"]["pieces"][:-1], "x" * 257]}, "token 519 is longer than 256"),
        (
            {"tokens": [*GOLDEN["sentencepiece"]["pieces"][:-1], "\udcff"]},
            "token 519 .* alphabet|inconsistent",
        ),
    ],
)
def test_a_sentencepiece_vocabulary_that_cannot_be_spoken_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        gguf_tokenizer(sentencepiece_gguf(**changes), VOCAB_SIZE)


def edited_llama2(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    stated = json.loads((FAMILIES / "llama2.json").read_text("utf-8"))
    edit(stated)
    path.write_text(json.dumps(stated), "utf-8")
    return path


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda stated: stated["model"]["vocab"].update(
                {"<0x0a>": stated["model"]["vocab"].pop("<0x0A>")}
            ),
            "has no token for byte 10",
        ),
        (lambda stated: stated["model"].update(byte_fallback=False), "nor SentencePiece with byte fallback"),
        (lambda stated: stated["decoder"].update(decoders=[]), "nor SentencePiece with byte fallback"),
        (lambda stated: stated["decoder"].update(decoders=7), "cannot be read as a tokenizer"),
        (lambda stated: stated["model"].update(merges=[1]), "cannot be read as a tokenizer"),
    ],
)
def test_a_sentencepiece_json_that_cannot_be_spoken_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = edited_llama2(tmp_path / "tokenizer.json", edit)
    with pytest.raises(ModelError, match=message):
        tokenizer_from_json(path, bos_token_id=1, eos_token_ids=(2,), vocab_size=VOCAB_SIZE)


def test_a_json_may_have_no_added_tokens_and_merges_as_texts(tmp_path: Path) -> None:
    def edit(stated: dict[str, Any]) -> None:
        del stated["added_tokens"]
        stated["model"]["merges"] = [" ".join(pair) for pair in stated["model"]["merges"]]

    path = edited_llama2(tmp_path / "tokenizer.json", edit)
    tokenizer = tokenizer_from_json(path, bos_token_id=None, eos_token_ids=(), vocab_size=VOCAB_SIZE)
    assert tokenizer.control_tokens == {}
    assert tokenizer.encode(TEXTS[2]) == GOLDEN["llama2"][2][1:]


def test_an_added_token_that_is_also_a_word_of_the_vocabulary_is_not_looked_up(tmp_path: Path) -> None:
    """Where whole words are looked up first, no merge is needed to make one."""
    stated = json.loads((FAMILIES / "llama3.json").read_text("utf-8"))
    hello = stated["model"]["vocab"]["Hello"]
    assert TOKENIZERS["llama3"].encode_piece("Hello") == [hello]
    added = stated["added_tokens"]
    added.append(added[0] | {"id": hello, "content": "Hello"})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(stated), "utf-8")
    tokenizer = tokenizer_from_json(path, bos_token_id=483, eos_token_ids=(), vocab_size=VOCAB_SIZE)
    assert tokenizer.control_tokens["Hello"] == hello
    assert hello not in tokenizer.encode_piece("Hello")
    assert tokenizer.decode(tokenizer.encode_piece("Hello")) == "Hello"
