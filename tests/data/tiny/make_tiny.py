"""Makes the tiny test model again: a 2-layer Llama with grouped queries, from a seed.

    python tests/data/tiny/make_tiny.py

Writes a Hugging Face folder (config, weights, byte-level tokenizer, chat template) and `tokens.json`:
greedy answers to fixed prompts, computed here in float64 by a plain numpy decoder that recomputes the
whole sequence for every token. The script fails unless the two best logits stay `MIN_MARGIN` apart.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SEED = 20
FOLDER = Path(__file__).parent
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("Ġt", "he"), ("i", "n"))
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 3 + 256 + len(MERGES),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_PROMPTS = 16
NUM_TOKENS = 40
MIN_MARGIN = 1e-3

Array = npt.NDArray[np.float64]


def main() -> None:
    random = np.random.default_rng(SEED)
    weights = make_weights(random)
    save_file(weights, FOLDER / "model.safetensors")
    write_json("config.json", CONFIG)
    write_json("tokenizer_config.json", {"chat_template": CHAT_TEMPLATE})
    make_tokenizer().save(str(FOLDER / "tokenizer.json"), pretty=False)
    wide = {name: weight.astype(np.float64) for name, weight in weights.items()}
    rows = []
    shared = random.integers(3, CONFIG["vocab_size"], 48).tolist()
    for index in range(NUM_PROMPTS):
        own = random.integers(3, CONFIG["vocab_size"], int(random.integers(3, 60))).tolist()
        prompt = shared + own if index % 2 else own
        rows.append({"prompt_token_ids": prompt, "token_ids": greedy(wide, prompt)})
    write_json("tokens.json", rows)


def write_json(name: str, value: object) -> None:
    (FOLDER / name).write_text(json.dumps(value, separators=(",", ":")) + "\n", encoding="utf-8")


def make_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(left + right for left, right in MERGES)]
    vocab = {piece: index + 3 for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab | {token: index for index, token in enumerate(CONTROL_TOKENS)}, merges=list(MERGES)
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    return tokenizer


def make_weights(random: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    hidden, inner, head_dim = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    query_size, kv_size = CONFIG["num_attention_heads"] * head_dim, CONFIG["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm() -> npt.NDArray[np.float32]:
        return random.uniform(0.5, 1.5, hidden).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(CONFIG["vocab_size"], hidden, np.sqrt(hidden))}
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(query_size, hidden, 2.0),
            prefix + "self_attn.k_proj.weight": matrix(kv_size, hidden, 2.0),
            prefix + "self_attn.v_proj.weight": matrix(kv_size, hidden, 2.0),
            prefix + "self_attn.o_proj.weight": matrix(hidden, query_size, 2.0),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden, 2.0),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden, 2.0),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner, 2.0),
        }
    return weights | {
        "model.norm.weight": norm(),
        "lm_head.weight": matrix(CONFIG["vocab_size"], hidden, 3.0),
    }


def greedy(weights: dict[str, Array], prompt: list[int]) -> list[int]:
    sequence = list(prompt)
    for _ in range(NUM_TOKENS):
        logits = last_logits(weights, sequence)
        second, best = np.sort(logits)[-2:]
        assert best - second >= MIN_MARGIN, f"margin {best - second:.2e}: choose another seed"
        sequence.append(int(logits.argmax()))
    return sequence[len(prompt) :]


def last_logits(weights: dict[str, Array], token_ids: list[int]) -> Array:
    x = weights["model.embed_tokens.weight"][token_ids]
    for layer in range(CONFIG["num_hidden_layers"]):
        of_layer = {
            name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): weight
            for name, weight in weights.items()
        }
        x = x + attention(of_layer, rms_norm(x, of_layer["input_layernorm"]))
        x = x + mlp(of_layer, rms_norm(x, of_layer["post_attention_layernorm"]))
    return rms_norm(x[-1], weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def rms_norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight


def mlp(layer: dict[str, Array], x: Array) -> Array:
    gate = x @ layer["mlp.gate_proj"].T
    return (gate / (1 + np.exp(-gate)) * (x @ layer["mlp.up_proj"].T)) @ layer["mlp.down_proj"].T


def attention(layer: dict[str, Array], x: Array) -> Array:
    length, head_dim = len(x), CONFIG["head_dim"]
    group = CONFIG["num_attention_heads"] // CONFIG["num_key_value_heads"]
    query, key, value = (x @ layer[f"self_attn.{name}_proj"].T for name in "qkv")
    future = np.triu(np.full((length, length), -np.inf), 1)
    heads = []
    for head in range(CONFIG["num_attention_heads"]):
        own = slice(head * head_dim, (head + 1) * head_dim)
        shared = slice(head // group * head_dim, (head // group + 1) * head_dim)
        scores = rotate(query[:, own]) @ rotate(key[:, shared]).T / np.sqrt(head_dim) + future
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(shares / shares.sum(-1, keepdims=True) @ value[:, shared])
    return np.concatenate(heads, -1) @ layer["self_attn.o_proj"].T


def rotate(x: Array) -> Array:
    half = CONFIG["head_dim"] // 2
    angles = np.outer(np.arange(len(x)), CONFIG["rope_theta"] ** (-np.arange(half) / half))
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


if __name__ == "__main__":
    main()
