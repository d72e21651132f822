"""The real model through the whole path, against tokens that `transformers` made (tests/data/golden)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.loading.source import resolve_model
from engine.tokenizer import Tokenizer
from tests.e2e.served import REPOSITORY, Served

GOLDEN = json.loads((REPOSITORY / "tests" / "data" / "golden" / "smollm2.json").read_text())["prompts"]
CHATS = [golden for golden in GOLDEN if "messages" in golden]
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return resolve_model("smollm2").tokenizer()


def expected(tokenizer: Tokenizer, golden: dict[str, Any], num_tokens: int) -> str:
    """What a client reads of the golden tokens: up to the first end of turn."""
    ids = golden["token_ids"][:num_tokens]
    ends = [ids.index(eos) for eos in tokenizer.eos_token_ids if eos in ids]
    return tokenizer.decode(ids[: min(ends, default=num_tokens)])


def ask(served: Served, golden: dict[str, Any], num_tokens: int, is_streamed: bool) -> str:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": golden["messages"],
        "max_tokens": num_tokens,
        "temperature": 0,
    }
    client = served.openai()
    if not is_streamed:
        return client.chat.completions.create(**fields).choices[0].message.content or ""
    chunks = client.chat.completions.create(**fields, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_greedy_text_equals_transformers(
    model_cluster: Served, tokenizer: Tokenizer, is_streamed: bool
) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda golden: ask(model_cluster, golden, 24, is_streamed), CHATS[:8]))
    assert texts == [expected(tokenizer, golden, 24) for golden in CHATS[:8]]


def test_prompt_tokens_are_counted_as_the_template_makes_them(model_cluster: Served) -> None:
    golden = CHATS[0]
    answer = model_cluster.openai().chat.completions.create(
        model=MODEL, messages=golden["messages"], max_tokens=1
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(golden["prompt_token_ids"])


def test_a_seed_gives_the_same_text_again(model_cluster: Served) -> None:
    texts = {
        model_cluster.openai()
        .completions.create(model=MODEL, prompt="Once upon a time", max_tokens=12, seed=7, temperature=1.0)
        .choices[0]
        .text
        for _ in range(3)
    }
    assert len(texts) == 1


def test_16_streams_at_once_complete_and_leave_nothing(model_cluster: Served) -> None:
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda g: ask(model_cluster, g, 16, True), [*CHATS, *CHATS][:16]))
    assert all(texts)
    model_cluster.wait_until_idle(within_s=2)
