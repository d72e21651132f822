"""The file of golden prompts, and where an answer departs from what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.golden import MAX_GOLDEN_PROMPTS, GoldenPrompt, read_golden
from engine.tokenizer import ByteTokenizer

token_bytes = ByteTokenizer().token_bytes


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "golden.jsonl"
    path.write_text(text)
    return path


def test_a_file_gives_its_prompts_in_order(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"prompt": "a", "text": "b"}\n\n{"prompt_token_ids": [1, 2], "token_ids": [3]}\n{"prompt": "c"}\n',
    )
    assert read_golden(path) == (
        GoldenPrompt(prompt="a", text="b"),
        GoldenPrompt(prompt_token_ids=[1, 2], token_ids=[3]),
        GoldenPrompt(prompt="c"),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: Invalid JSON"),
        ('{"prompt": 5}', "line 2: prompt: Input should be a valid string"),
        ('{"prompt": ""}', "line 2: prompt: String should have at least 1 character"),
        ('{"prompt": "x", "txt": "y"}', "line 2: txt: Extra inputs are not permitted"),
        ('{"text": "y"}', "line 2: give one of prompt and prompt_token_ids"),
        ('{"prompt": "x", "prompt_token_ids": [1]}', "line 2: give one of prompt and prompt_token_ids"),
        ('{"prompt": "x", "text": "y", "token_ids": [1]}', "line 2: give text or token_ids, not both"),
        ('{"prompt_token_ids": [1, -1]}', "line 2: prompt_token_ids.1: Input should be greater"),
        ('{"prompt": "x", "token_ids": [true]}', "line 2: token_ids.0: Input should be a valid integer"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_field(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"golden\.jsonl line 2: ") as error:
        read_golden(written(tmp_path, f'{{"prompt": "fine"}}\n{line}\n'))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [0, MAX_GOLDEN_PROMPTS + 1])
def test_too_few_or_many_prompts_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"holds {count} prompts; 1 to 64"):
        read_golden(written(tmp_path, '{"prompt": "x"}\n' * count))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl cannot be read: No such file"):
        read_golden(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("expected", "answer", "index"),
    [
        ({"token_ids": [1, 2]}, [1, 2], None),
        ({"token_ids": [1, 2]}, [1, 2, 3], None),
        ({"token_ids": [1, 2]}, [1, 3], 1),
        ({"token_ids": [1, 2]}, [1], 1),
        ({"text": "ab"}, b"ab", None),
        ({"text": "ab"}, b"abc", None),
        ({"text": "ab"}, b"xb", 0),
        ({"text": "é"}, b"\xc3\xa9", None),
        ({"text": "é"}, b"\xc3\xa8", 1),
        ({"text": "ab"}, [97, 258], 2),
        ({}, [258], None),
    ],
)
def test_an_answer_departs_at_its_first_wrong_token(
    expected: dict[str, Any], answer: list[int] | bytes, index: int | None
) -> None:
    assert GoldenPrompt(prompt="x", **expected).departure(list(answer), token_bytes) == index


@given(text=st.text(min_size=1, max_size=12), other=st.binary(max_size=12))
def test_a_text_holds_exactly_where_the_answer_begins_with_it(text: str, other: bytes) -> None:
    for answer in (other, text.encode() + other, text.encode()[:-1]):
        holds = GoldenPrompt(prompt="x", text=text).departure(list(answer), token_bytes) is None
        assert holds == answer.startswith(text.encode())


def test_what_is_no_longer_expected_keeps_its_prompt() -> None:
    asked = GoldenPrompt(prompt="x", text="y").without_expectation()
    assert asked == GoldenPrompt(prompt="x")
    assert not asked.is_expecting
