"""The file of public prefixes: what it gives in tokens, and what it refuses, with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.preflight import open_public_prefixes
from cluster.public_prefix_file import MAX_PUBLIC_PREFIXES, MAX_PUBLIC_TOKENS, read_public_prefixes
from cluster.public_prefixes import PublicPrefixes
from cluster.settings import ServeSettings
from cluster.stages import StartError
from engine.chat_template import ChatMessage, ChatTemplate
from engine.tokenizer import ByteTokenizer
from tests.builders_model import TINY, tiny_source

TOKENIZER = ByteTokenizer()
TEMPLATE = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    TOKENIZER,
)
SYSTEM = {"role": "system", "content": "You are a clerk of the water board."}


def written(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "public.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def read(path: Path, template: ChatTemplate | None = TEMPLATE) -> tuple[tuple[int, ...], ...]:
    return read_public_prefixes(path, TOKENIZER, template, block_size=16)


def test_text_token_ids_and_messages_become_tokens_in_order(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"text": "A text of some length."}, "", {"token_ids": [*range(20)]}, {"messages": [SYSTEM]}
    )
    text, token_ids, messages = read(path)
    assert bytes(text) == b"A text of some length."
    assert token_ids == (*range(20),)
    assert TOKENIZER.decode(messages).endswith("the water board.\n")


def test_a_conversation_that_begins_with_the_messages_begins_with_their_tokens(tmp_path: Path) -> None:
    public = PublicPrefixes(read(written(tmp_path, {"messages": [SYSTEM]})))
    turns = [ChatMessage(**SYSTEM), ChatMessage("user", "When?")]
    assert public.num_blocks(TEMPLATE.encode(turns), 16) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: Invalid JSON"),
        ("{}", "line 2: give one of text, token_ids and messages"),
        ({"text": "x", "token_ids": [1]}, "line 2: give one of text, token_ids and messages"),
        ({"text": ""}, "line 2: text: String should have at least 1 character"),
        ({"text": "x", "salt": "y"}, "line 2: salt: there is no such field; give one of text, token_ids and"),
        ({"text": "short"}, "line 2: has 5 tokens, and a block, the least to share, 16"),
        ({"token_ids": [1, -1]}, "line 2: token_ids.1: Input should be greater"),
        ({"token_ids": [*range(16), 999]}, "line 2: token_ids: the vocabulary ends at 258"),
        ({"messages": []}, "line 2: messages: List should have at least 1 item"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "line 2: messages.0.role: Input should be"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_field(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"public\.jsonl line 2: ") as error:
        read(written(tmp_path, {"token_ids": [*range(16)]}, line))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_does_not_quote_the_prompt(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1") as error:
        read(written(tmp_path, {"messages": [{"role": "canary-role", "content": "canary"}]}))
    assert "canary" not in str(error.value)


def test_messages_need_a_chat_template(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: messages: this model has no chat template"):
        read(written(tmp_path, {"messages": [SYSTEM]}), template=None)


def test_what_the_template_refuses_is_said_with_its_line(tmp_path: Path) -> None:
    strict = ChatTemplate("{{ raise_exception('no system, please') }}", TOKENIZER)
    with pytest.raises(ValueError, match="line 1: the chat template refused the messages: no system"):
        read(written(tmp_path, {"messages": [SYSTEM]}), template=strict)


@pytest.mark.parametrize("count", [0, MAX_PUBLIC_PREFIXES + 1])
def test_too_few_or_many_prefixes_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"holds {count} prefixes; 1 to 64"):
        read(written(tmp_path, *[{"token_ids": [*range(16)]}] * count))


def test_too_many_tokens_are_refused(tmp_path: Path) -> None:
    line = {"token_ids": [1] * (MAX_PUBLIC_TOKENS // 2 + 1)}
    with pytest.raises(ValueError, match=f"at most {MAX_PUBLIC_TOKENS} are allowed"):
        read(written(tmp_path, line, line))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.jsonl cannot be read: No such file"):
        read(tmp_path / "missing.jsonl")


def test_the_example_in_the_repository_is_a_good_one() -> None:
    example = Path(__file__).resolve().parents[2] / "deploy" / "public-prefix.jsonl"
    assert len(read(example)) == 2


# --- at the start of a cluster ----------------------------------------------------------------


def test_without_the_setting_nothing_is_public() -> None:
    assert open_public_prefixes(ServeSettings(model=str(TINY)), tiny_source()) == ()


def test_the_start_reads_the_file_with_the_models_own_tokens(tmp_path: Path) -> None:
    path = written(tmp_path, {"token_ids": [*range(3, 40)]})
    settings = ServeSettings(model=str(TINY), public_prefix=path)
    assert open_public_prefixes(settings, tiny_source()) == ((*range(3, 40),),)


def test_a_bad_file_fails_the_start_and_names_the_flag(tmp_path: Path) -> None:
    settings = ServeSettings(model=str(TINY), public_prefix=written(tmp_path, "{"))
    with pytest.raises(StartError, match=r"--public-prefix .*public\.jsonl line 1: ") as error:
        open_public_prefixes(settings, tiny_source())
    assert error.value.remedy == "mend the file, or leave --public-prefix away"
