"""Models for tests: the tiny one, the same as GGUF, and engines that run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading.source import ModelSource, resolve_model
from engine.policy import FirstComeFirstServed
from engine.request import Request
from engine.scheduler import Scheduler
from engine.torch_executor import TorchExecutor
from tests.builders import FakeClock, run_to_end, tokens_of

TINY = Path(__file__).parent / "data" / "tiny"

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_source() -> ModelSource:
    return resolve_model(str(TINY))


def tiny_answers() -> list[dict[str, list[int]]]:
    """Prompts and greedy answers that the script computed in plain numpy."""
    rows: list[dict[str, list[int]]] = json.loads((TINY / "tokens.json").read_text())
    return rows


def write_tiny_gguf(
    path: Path,
    *,
    tensor_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "llama",
    edit: Callable[[GGUFWriter], None] = lambda writer: None,
    without: Sequence[str] = (),
) -> Path:
    """The tiny model as GGUF, Q and K rows interleaved as the format wants them.

    `edit` may add metadata; tensors named in `without` are left out; matrices have `tensor_type`.
    """
    config = json.loads((TINY / "config.json").read_text())
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    _add_vocabulary(writer)
    edit(writer)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in tiny_source().weights():
        gguf_name = _gguf_name(name)
        if gguf_name not in without:
            for projection, num_heads in heads.items():
                if projection in name:
                    weight = _interleaved(weight, num_heads)
            kind = tensor_type if weight.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(gguf_name, quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: GGUFWriter) -> None:
    stated = json.loads((TINY / "tokenizer.json").read_text())
    by_id = {i: token for token, i in stated["model"]["vocab"].items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_id[i] for i in range(len(by_id))])
    writer.add_token_types([3 if i < 3 else 1 for i in range(len(by_id))])
    writer.add_token_merges([" ".join(pair) for pair in stated["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in GGUF_NAMES:
        return GGUF_NAMES[stem] + ".weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def _interleaved(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Row i of a head's first half goes to 2i, row i of its second half to 2i + 1."""
    result = np.empty_like(weight)
    head_dim = len(weight) // num_heads
    for head in range(num_heads):
        for i in range(head_dim // 2):
            begin = head * head_dim
            result[begin + 2 * i] = weight[begin + i]
            result[begin + 2 * i + 1] = weight[begin + head_dim // 2 + i]
    return result


def make_torch_core(
    source: ModelSource,
    *,
    dtype: str,
    executor: TorchExecutor | None = None,
    num_blocks: int = 400,
    block_size: int = 16,
    **sizes: Any,
) -> EngineCore:
    config = EngineConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        **{"max_model_len": source.config.max_model_len, "watermark": 0.0, **sizes},
    )
    executor = executor or TorchExecutor(source, device="cpu", dtype=dtype, num_threads=1)
    executor.allocate_kv(num_blocks, block_size)
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=source.config.eos_token_ids)
    return EngineCore(scheduler, executor, FakeClock())


def answers(core: EngineCore, requests: Sequence[Request]) -> list[list[int]]:
    """All requests' tokens, run together."""
    for request in requests:
        core.add(request)
    outputs = run_to_end(core)
    return [tokens_of(outputs[request.request_id]) for request in requests]
