"""Block hashes made a second time, the simple way, from what `engine/block_hash.py` says of its bytes.

Imports nothing of the project. `python tests/data/block_hash/make_vectors.py` writes the golden vectors
anew: only for a new format, after which no block that anybody cached is found any more.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

VECTORS = Path(__file__).parent / "vectors.json"


def naive_digest(fields: dict[str, bytes]) -> bytes:
    data = b""
    for tag, value in fields.items():
        data += struct.pack("<I", len(tag)) + tag.encode() + struct.pack("<Q", len(value)) + value
    return hashlib.blake2b(data, digest_size=16).digest()


def naive_model_root(
    model_id: str, revision: str, rope: str, kv_dtype: str, adapter: str, quantization: str = "none"
) -> bytes:
    """`rope` is the text that a RoPE configuration names itself by. `none` is not hashed."""
    texts = {"model_id": model_id, "revision": revision, "rope": rope, "kv_dtype": kv_dtype}
    texts |= {"adapter": adapter} | ({} if quantization == "none" else {"quantization": quantization})
    return naive_digest({tag: text.encode() for tag, text in texts.items()})


def naive_tenant_root(model_root: bytes, salt: bytes) -> bytes:
    return naive_digest({"model_root": model_root, "salt": salt})


def naive_hashes(root: bytes, token_ids: list[int], block_size: int) -> list[bytes]:
    chain = [root]
    while len(token_ids) >= block_size:
        block, token_ids = token_ids[:block_size], token_ids[block_size:]
        tokens = struct.pack(f"<{block_size}i", *block)
        chain.append(naive_digest({"parent": chain[-1], "tokens": tokens}))
    return chain[1:]


BASE = {
    "model_id": "tiny",
    "revision": "r1",
    "rope": {"theta": 10000.0},
    "kv_dtype": "float32",
    "adapter": "",
    "quantization": "none",
}
TEXTS = ("model_id", "revision", "kv_dtype", "adapter", "quantization")
ROPES: list[tuple[dict[str, object], str]] = [
    ({"theta": 500000.0}, "500000.0 none 1.0"),
    ({"theta": 10000.0, "scaling": "linear"}, "10000.0 linear 1.0"),
    ({"theta": 10000.0, "factor": 2.0}, "10000.0 none 2.0"),
    ({"theta": 10000.0, "divisors": [1.0, 4.0]}, "10000.0 none 1.0 1.0 1.0 4.0"),
    ({"theta": 10000.0, "attention_factor": 1.25}, "10000.0 none 1.0 1.25 "),
]
CHANGES: list[tuple[dict[str, object], str]] = [
    ({}, "10000.0 none 1.0"),
    ({"model_id": "tiny2"}, "10000.0 none 1.0"),
    ({"model_id": "模型"}, "10000.0 none 1.0"),
    ({"revision": "r2"}, "10000.0 none 1.0"),
    ({"kv_dtype": "bfloat16"}, "10000.0 none 1.0"),
    ({"adapter": "lora"}, "10000.0 none 1.0"),
    ({"quantization": "int8"}, "10000.0 none 1.0"),
    ({"quantization": "stored"}, "10000.0 none 1.0"),
    *(({"rope": rope}, text) for rope, text in ROPES),
]
PROMPTS: list[tuple[list[int], int]] = [
    (list(range(33)), 16),
    ([0] * 8, 4),
    ([0, 1, 255, 256, 65_535, 65_536, 49_151, 2**31 - 1], 2),
    ([7, 8, 9], 1),
    ([7, 8, 9], 4),
]


def root_vectors() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for change, rope in CHANGES:
        model = {**BASE, **change}
        texts = {name: str(model[name]) for name in TEXTS}
        rows.append({**model, "root": naive_model_root(rope=rope, **texts).hex()})
    return rows


def chain_vectors() -> list[dict[str, object]]:
    root = naive_model_root("tiny", "r1", "10000.0 none 1.0", "float32", "")
    rows: list[dict[str, object]] = []
    for salt in (b"", b"salt", bytes(range(32))):
        tenant = naive_tenant_root(root, salt)
        for token_ids, block_size in PROMPTS:
            hashes = [block.hex() for block in naive_hashes(tenant, token_ids, block_size)]
            prompt = {"token_ids": token_ids, "block_size": block_size, "hashes": hashes}
            rows.append({"model_root": root.hex(), "salt": salt.hex(), "tenant_root": tenant.hex(), **prompt})
    return rows


def vectors() -> dict[str, list[dict[str, object]]]:
    return {"roots": root_vectors(), "chains": chain_vectors()}


def write() -> None:
    """One vector a line."""
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        for name, rows in vectors().items()
    ]
    VECTORS.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
