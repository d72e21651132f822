"""The real model through the whole path, against tokens that `transformers` made (tests/data/golden)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.loading.source import resolve_model
from engine.tokenizer import Tokenizer
from tests.e2e.served import REPOSITORY, Served

GOLDEN = json.loads((REPOSITORY / "tests" / "data" / "golden" / "smollm2.json").read_text())["prompts"]
CHATS = [golden for golden in GOLDEN if "messages" in golden]
MODEL = "SmolLM2-135M-Instruct"
NUM_TOKENS = 24
STAGES = ["environment", "Redis", "Ray", "weights", "KV pool", "warm-up", "golden", "ready"]


@pytest.fixture(scope="module")
def model_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It turns nobody away for being slow: the machine may be."""
    model = ("--model", "smollm2", "--dtype", "float32", "--kv-memory", "512M")
    served = Served(tmp_path_factory.mktemp("model"), *model, "--interactive-deadline-s", "60")
    yield served
    assert served.close() == 0


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return resolve_model("smollm2").tokenizer()


def expected(tokenizer: Tokenizer, golden: dict[str, Any]) -> str:
    """What a client reads of the golden tokens: up to the first end of turn."""
    ids = golden["token_ids"][:NUM_TOKENS]
    ends = [ids.index(eos) for eos in tokenizer.eos_token_ids if eos in ids]
    return tokenizer.decode(ids[: min(ends, default=NUM_TOKENS)])


def ask(served: Served, golden: dict[str, Any], is_streamed: bool) -> str:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": golden["messages"],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
    }
    client = served.openai()
    if not is_streamed:
        return client.chat.completions.create(**fields).choices[0].message.content or ""
    chunks = client.chat.completions.create(**fields, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_stages_are_shown_with_their_times(model_cluster: Served) -> None:
    shown = re.findall(r"^  ([A-Za-z][A-Za-z -]*?) +\d+\.\d s", model_cluster.output, re.MULTILINE)
    assert shown == STAGES


@pytest.mark.parametrize(
    ("is_streamed", "num_prompts"), [(True, 16), (False, 2), pytest.param(False, 16, marks=pytest.mark.soak)]
)
def test_greedy_text_of_all_at_once_equals_transformers_and_leaves_nothing(
    model_cluster: Served, tokenizer: Tokenizer, is_streamed: bool, num_prompts: int
) -> None:
    chats = CHATS[:num_prompts]
    with ThreadPoolExecutor(num_prompts) as pool:
        texts = list(pool.map(lambda golden: ask(model_cluster, golden, is_streamed), chats))
    assert texts == [expected(tokenizer, golden) for golden in chats]
    model_cluster.wait_until_idle(within_s=2)


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
        for _ in range(2)
    }
    assert len(texts) == 1
