"""GGUF files for tests, from weights under their Hugging Face names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

Array = npt.NDArray[Any]
Config = Mapping[str, Any]

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def write_gguf(
    path: Path,
    config: Config,
    weights: Mapping[str, Array],
    *,
    tensor_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str | None = None,
    edit: Callable[[GGUFWriter], object] = lambda writer: None,
    without: Sequence[str] = (),
) -> Path:
    """Matrices get `tensor_type`; those of bytes are taken as they are. Q and K of Llama are interleaved.

    `edit` may add metadata and tensors; tensors named in `without` are left out. RoPE scaling is
    left to `edit`.
    """
    architecture = architecture or ARCHITECTURES[config["architectures"][0]]
    writer = GGUFWriter(path, architecture)
    _add_sizes(writer, config)
    edit(writer)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in weights.items():
        gguf_name = _gguf_name(name)
        if gguf_name in without:
            continue
        kind = tensor_type if weight.ndim == 2 else GGMLQuantizationType.F32
        rows = weight if weight.dtype == np.uint8 else quantize(weight, kind)
        for projection, num_heads in heads.items():
            if architecture == "llama" and f"{projection}.weight" in name:
                rows = _interleaved(rows, num_heads)
        writer.add_tensor(gguf_name, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: GGUFWriter, config: Config) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
    theta = (config.get("rope_parameters") or config).get("rope_theta")
    if theta is not None:
        writer.add_rope_freq_base(theta)


def add_bytes_vocabulary(writer: GGUFWriter, tokenizer_json: Path) -> None:
    """A byte-level vocabulary whose first three tokens are control tokens."""
    stated = json.loads(tokenizer_json.read_text())
    by_id = {i: token for token, i in stated["model"]["vocab"].items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_id[i] for i in range(len(by_id))])
    writer.add_token_types([3 if i < 3 else 1 for i in range(len(by_id))])
    writer.add_token_merges([" ".join(pair) for pair in stated["model"]["merges"]])
    writer.add_eos_token_id(2)


def random_blocks(shape: tuple[int, int], kind: GGMLQuantizationType, random: np.random.Generator) -> Array:
    """Bytes of a quantised matrix: any quants, any small scales. [rows, bytes]."""
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    num_blocks = shape[0] * shape[1] // block_weights
    blocks = random.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
    half = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}[kind.name]
    for start in half:
        scales = random.uniform(0.5, 1.5, num_blocks).astype(np.float16) / np.float16(1024)
        blocks[:, start : start + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in GGUF_NAMES:
        return f"{GGUF_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def _interleaved(weight: Array, num_heads: int) -> Array:
    """Row i of a head's first half goes to 2i, row i of its second half to 2i + 1."""
    result = np.empty_like(weight)
    head_dim = len(weight) // num_heads
    for head in range(num_heads):
        for i in range(head_dim // 2):
            begin = head * head_dim
            result[begin + 2 * i] = weight[begin + i]
            result[begin + 2 * i + 1] = weight[begin + head_dim // 2 + i]
    return result
