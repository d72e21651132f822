"""Block hashes: the chain, and that no two meanings share a key."""

import hashlib
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.block_hash import hash_block, hash_blocks, model_root, tenant_root
from engine.config import ModelConfig, RopeConfig

ROOT = b"r" * 16


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(hash_blocks(ROOT, range(n), 4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_the_chain_is_the_blocks_one_by_one() -> None:
    first = hash_block(ROOT, [1, 2])
    assert hash_blocks(ROOT, [1, 2, 3, 4, 5], 2) == (first, hash_block(first, [3, 4]))


@given(st.binary(min_size=1, max_size=8), st.binary(min_size=1, max_size=8))
def test_two_salts_never_share_a_block(a: bytes, b: bytes) -> None:
    same = hash_blocks(tenant_root(ROOT, a), range(8), 4) == hash_blocks(tenant_root(ROOT, b), range(8), 4)
    assert same == (a == b)


def naive_digest(**fields: bytes) -> bytes:
    """The format, written a second time: tag and value, each behind its length."""
    data = b""
    for tag, value in fields.items():
        data += struct.pack("<I", len(tag)) + tag.encode() + struct.pack("<Q", len(value)) + value
    return hashlib.blake2b(data, digest_size=16).digest()


def naive_hashes(root: bytes, token_ids: list[int], block_size: int) -> list[bytes]:
    chain = [root]
    while len(token_ids) >= block_size:
        block, token_ids = token_ids[:block_size], token_ids[block_size:]
        chain.append(naive_digest(parent=chain[-1], tokens=struct.pack(f"<{block_size}i", *block)))
    return chain[1:]


@given(st.binary(max_size=16), st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(1, 5))
def test_the_chain_equals_the_naive_one(root: bytes, token_ids: list[int], block_size: int) -> None:
    assert list(hash_blocks(root, token_ids, block_size)) == naive_hashes(root, token_ids, block_size)


MODEL = ModelConfig(
    model_id="tiny",
    revision="r1",
    architecture="llama",
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10000.0),
    max_model_len=128,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(2,),
)


def test_stored_hashes_stay_what_they_are() -> None:
    """Gateways, replicas and the prefix index of different ages must agree on them."""
    root = model_root(MODEL, kv_dtype="float32")
    tenant = tenant_root(root, b"salt")
    hashes = hash_blocks(tenant, range(32), 16)
    assert [value.hex() for value in (root, tenant, *hashes)] == [
        "0348bb7c234ea9a153f3461210ba7726",
        "3cf9352adcb96d6dd4b7ed39a35a258e",
        "227bf5a84eef4fc0b1145c9b3b33c1b0",
        "5787c18413886cda628d4bd97f5d10bf",
    ]


def test_the_root_is_the_naive_digest_of_all_that_kv_depends_on() -> None:
    assert model_root(MODEL, kv_dtype="float32", adapter="lora") == naive_digest(
        model_id=b"tiny", revision=b"r1", rope=b"10000.0 none 1.0", kv_dtype=b"float32", adapter=b"lora"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"model_id": "tiny2"},
        {"revision": "r2"},
        {"rope": RopeConfig(theta=500000.0)},
        {"rope": RopeConfig(theta=10000.0, scaling="linear")},
        {"rope": RopeConfig(theta=10000.0, factor=2.0)},
    ],
)
def test_other_kv_has_another_root(change: dict[str, object]) -> None:
    assert model_root(replace(MODEL, **change), kv_dtype="float32") != model_root(MODEL, kv_dtype="float32")


def test_another_kv_dtype_or_adapter_has_another_root() -> None:
    roots = {
        model_root(MODEL, kv_dtype=kv_dtype, adapter=adapter)
        for kv_dtype in ("float32", "bfloat16")
        for adapter in ("", "lora")
    }
    assert len(roots) == 4
