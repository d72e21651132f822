"""Makes `logits.json` and `rope.json` again: what transformers says of the models in `families.py`.

    pip install -e '.[golden]' && python tests/data/families/make_families.py

`logits.json`: float32 logits at three positions of a prompt and greedy tokens behind it, whose two best
logits stay `MIN_MARGIN` apart. `rope.json`: angles from transformers' own functions, computed in float64.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from families import FAMILIES, write_folder
from transformers import AutoModelForCausalLM, LlamaConfig, modeling_rope_utils

FOLDER = Path(__file__).parent
PROMPT_LENGTH = 40
NUM_TOKENS = 8
MIN_MARGIN = 1e-3
POSITIONS = [0, 20, PROMPT_LENGTH - 1]
ROPE_POSITIONS = [1, 77, 30000]

_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
ROPES: dict[str, dict[str, Any]] = {
    "none": {"head_dim": 64, "rope_theta": 10000.0, "rope_type": "default"},
    "linear": {"head_dim": 32, "rope_theta": 10000.0, "rope_type": "linear", "factor": 2.5},
    "Llama 3.1": {"head_dim": 128, "rope_theta": 500000.0, "factor": 8.0} | _LLAMA3,
    "Llama 3.2": {"head_dim": 64, "rope_theta": 500000.0, "factor": 32.0} | _LLAMA3,
    "Qwen 2.5": {"head_dim": 128, "rope_theta": 1000000.0} | _YARN,
    "YaRN, told its attention": {"head_dim": 32, "rope_theta": 10000.0, "attention_factor": 0.75} | _YARN,
    "YaRN, two scales": {"head_dim": 32, "rope_theta": 10000.0, "mscale": 0.7, "mscale_all_dim": 1.1} | _YARN,
    "YaRN, other turns": {"head_dim": 64, "rope_theta": 50000.0, "beta_fast": 20.0, "beta_slow": 2.0} | _YARN,
    "YaRN, not truncated": {"head_dim": 64, "rope_theta": 50000.0, "truncate": False} | _YARN,
    "YaRN, no ramp": {"head_dim": 16, "rope_theta": 1e9, "beta_fast": 1.0, "beta_slow": 1.0} | _YARN,
}


def main() -> None:
    _write("logits.json", {name: _speak(config) for name, config in FAMILIES.items()})
    _write("rope.json", {name: _angles(dict(stated)) for name, stated in ROPES.items()})


def _write(name: str, rows: dict[str, Any]) -> None:
    lines = [f"{json.dumps(key)}:{json.dumps(row, separators=(',', ':'))}" for key, row in rows.items()]
    (FOLDER / name).write_text("{" + ",\n".join(lines) + "}\n")


@torch.inference_mode()
def _speak(config: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(config, Path(folder))
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    prompt = np.random.default_rng(11).integers(3, config["vocab_size"], PROMPT_LENGTH).tolist()
    logits = model.eval()(torch.tensor([prompt])).logits[0]
    greedy: list[int] = []
    for _ in range(NUM_TOKENS):
        best = model(torch.tensor([prompt + greedy])).logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] >= MIN_MARGIN, "choose another seed"
        greedy.append(int(best.indices[0]))
    rows = [[round(value, 6) for value in logits[position].tolist()] for position in POSITIONS]
    return {"prompt": prompt, "positions": POSITIONS, "logits": rows, "greedy": greedy}


def _angles(stated: dict[str, Any]) -> dict[str, Any]:
    head_dim = stated.pop("head_dim")
    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=131072, hidden_size=head_dim, num_attention_heads=1
    )
    config.rope_parameters = dict(stated)
    with _float64():
        if stated["rope_type"] == "default":
            exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
            frequencies, factor = 1.0 / stated["rope_theta"] ** exponents, 1.0
        else:
            frequencies, factor = modeling_rope_utils.ROPE_INIT_FUNCTIONS[stated["rope_type"]](config)
    angles = torch.outer(torch.tensor(ROPE_POSITIONS, dtype=torch.float64), frequencies)
    assert angles.dtype == torch.float64
    return {
        "head_dim": head_dim,
        "parameters": stated,
        "positions": ROPE_POSITIONS,
        "cos": _rounded(angles.cos() * factor),
        "sin": _rounded(angles.sin() * factor),
    }


@contextmanager
def _float64() -> Iterator[None]:
    """transformers asks for float32 by name; its sums are wanted, not its rounding."""
    with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64):
        yield


def _rounded(values: torch.Tensor) -> list[list[float]]:
    return [[round(value, 9) for value in row] for row in values.tolist()]


if __name__ == "__main__":
    main()
