"""Block hashes: which KV may be shared with whom, said once.

A block's hash is chained blake2b-128 over (parent hash, token ids of the full block). The chain
begins at a root that names everything KV depends on and the tenant's salt; two roots differ as
soon as one field does.

The bytes that are hashed: for each field the length of its tag (4 bytes), the tag, the length of its
value (8 bytes), the value. Integers are little-endian, text is UTF-8, token ids are int32. As every
part stands behind its length, the bytes can be read back in one way only: no two meanings share a key.

A prefix that the operator made public is hashed from `public_root`, the same for all tenants, under a tag
of its own, so that no salt leads there. The first block behind it is hashed from `branch_root` in place
of its parent: from there on the chain is its tenant's own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NewType

from engine.config import ModelConfig

BlockHash = NewType("BlockHash", bytes)

_DIGEST_BYTES = 16


def _digest(tagged: Iterable[tuple[str, bytes]]) -> BlockHash:
    state = blake2b(digest_size=_DIGEST_BYTES)
    for tag, value in tagged:
        name = tag.encode()
        state.update(len(name).to_bytes(4, "little") + name)
        state.update(len(value).to_bytes(8, "little") + value)
    return BlockHash(state.digest())


def model_root(
    model: ModelConfig, *, kv_dtype: str, adapter: str = "", quantization: str = "none"
) -> BlockHash:
    """Root of one model revision, as a replica's hello names it. No tenant yet: see `tenant_root`.

    Of unquantised weights no quantization is hashed: these roots are older than it.
    """
    tagged = {
        "model_id": model.model_id,
        "revision": model.revision,
        "rope": model.rope.identity,
        "kv_dtype": kv_dtype,
        "adapter": adapter,
    }
    if quantization != "none":
        tagged["quantization"] = quantization
    return _digest((tag, value.encode()) for tag, value in tagged.items())


def tenant_root(root: bytes, salt: bytes) -> BlockHash:
    """The root that a tenant's chains start from. `salt` is the server's HMAC, never the client's word."""
    return _digest([("model_root", root), ("salt", salt)])


def public_root(root: bytes) -> BlockHash:
    """The root that all tenants' chains start from whose prompts begin with a public prefix."""
    return _digest([("model_root", root), ("public", b"")])


def branch_root(last_public: bytes, salt: bytes) -> BlockHash:
    """What a tenant's chain goes on from behind the public block of that hash. `salt` as in `tenant_root`."""
    return _digest([("public_block", last_public), ("salt", salt)])


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32. Raises struct.error for one that is not an int32."""
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def hash_block(parent: bytes, token_ids: Sequence[int]) -> BlockHash:
    """Hash of one full block behind `parent` (the previous block's hash, or the root)."""
    return _digest([("parent", parent), ("tokens", pack_token_ids(token_ids))])


def hash_blocks(root: bytes, token_ids: Sequence[int], block_size: int) -> tuple[BlockHash, ...]:
    """Hashes of all full blocks of `token_ids`, in order. The tail that fills no block has none."""
    hashes: list[BlockHash] = []
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = hash_block(parent, token_ids[start : start + block_size])
        hashes.append(block)
        parent = block
    return tuple(hashes)
