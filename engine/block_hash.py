"""Block hashes: which KV may be shared with whom, said once.

A block's hash is chained blake2b-128 over (parent hash, token ids of the full block). The chain
begins at a root that names everything KV depends on and the tenant's salt; two roots differ as
soon as one field does. Fields are tagged and length-prefixed, so no two meanings share a key.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NewType

from engine.config import ModelConfig

BlockHash = NewType("BlockHash", bytes)

_DIGEST_BYTES = 16


def _digest(fields: Iterable[tuple[str, bytes]]) -> BlockHash:
    state = blake2b(digest_size=_DIGEST_BYTES)
    for tag, value in fields:
        name = tag.encode()
        state.update(len(name).to_bytes(4, "little") + name)
        state.update(len(value).to_bytes(8, "little") + value)
    return BlockHash(state.digest())


def model_root(model: ModelConfig, *, kv_dtype: str, adapter: str = "") -> BlockHash:
    """Root of one model revision, as a replica's hello names it. No tenant yet: see `tenant_root`."""
    rope = model.rope
    return _digest(
        [
            ("model_id", model.model_id.encode()),
            ("revision", model.revision.encode()),
            ("rope", f"{rope.theta!r} {rope.scaling} {rope.factor!r}".encode()),
            ("kv_dtype", kv_dtype.encode()),
            ("adapter", adapter.encode()),
        ]
    )


def tenant_root(root: bytes, salt: bytes) -> BlockHash:
    """The root that a tenant's chains start from. `salt` is the server's HMAC, never the client's word."""
    return _digest([("model_root", root), ("salt", salt)])


def hash_block(parent: bytes, token_ids: Sequence[int]) -> BlockHash:
    """Hash of one full block behind `parent` (the previous block's hash, or the root)."""
    tokens = array("i", token_ids).tobytes()  # int32, little-endian on every machine we run on
    return _digest([("parent", parent), ("tokens", tokens)])


def hash_blocks(root: bytes, token_ids: Sequence[int], block_size: int) -> tuple[BlockHash, ...]:
    """Hashes of all full blocks of `token_ids`, in order. The tail that fills no block has none."""
    hashes: list[BlockHash] = []
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = hash_block(parent, token_ids[start : start + block_size])
        hashes.append(block)
        parent = block
    return tuple(hashes)
