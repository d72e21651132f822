"""Block hashes: the chain, the stored vectors, and that no two meanings share a key."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from engine.block_hash import hash_block, hash_blocks, model_root, tenant_root
from engine.config import ModelConfig, RopeConfig
from engine.loading.source import resolve_model
from tests.builders import make_core, make_request, run_to_end
from tests.builders_model import TINY
from tests.data.block_hash.make_vectors import VECTORS, naive_hashes, naive_tenant_root, vectors

ROOT = b"r" * 16
STORED: dict[str, list[dict[str, Any]]] = json.loads(VECTORS.read_text(encoding="utf-8"))
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


# --- the chain ------------------------------------------------------------------------------


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(hash_blocks(ROOT, range(n), 4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_the_chain_is_the_blocks_one_by_one() -> None:
    first = hash_block(ROOT, [1, 2])
    assert hash_blocks(ROOT, [1, 2, 3, 4, 5], 2) == (first, hash_block(first, [3, 4]))


def test_a_token_id_beyond_int32_has_no_hash() -> None:
    with pytest.raises(struct.error):
        hash_block(ROOT, [2**31])


# --- stored, and made a second time -----------------------------------------------------------


def test_the_stored_vectors_are_what_the_naive_way_makes() -> None:
    assert vectors() == STORED


@pytest.mark.parametrize("row", STORED["roots"], ids=lambda row: row["root"][:8])
def test_a_root_is_the_stored_one(row: dict[str, Any]) -> None:
    """Gateways, replicas and the prefix index of different ages must agree on it."""
    rope = RopeConfig(**{key: tuple(v) if isinstance(v, list) else v for key, v in row["rope"].items()})
    model = replace(MODEL, model_id=row["model_id"], revision=row["revision"], rope=rope)
    beside = {name: row[name] for name in ("kv_dtype", "adapter", "quantization")}
    assert model_root(model, **beside).hex() == row["root"]


@pytest.mark.parametrize("row", STORED["chains"])
def test_a_chain_is_the_stored_one(row: dict[str, Any]) -> None:
    root = tenant_root(bytes.fromhex(row["model_root"]), bytes.fromhex(row["salt"]))
    assert root.hex() == row["tenant_root"]
    assert [block.hex() for block in hash_blocks(root, row["token_ids"], row["block_size"])] == row["hashes"]


def test_the_stored_roots_differ_from_one_another() -> None:
    """Each differs from the first in one field."""
    assert len({row["root"] for row in STORED["roots"]}) == len(STORED["roots"]) == 13


@given(st.binary(max_size=16), st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(1, 5))
def test_any_chain_equals_the_naive_one(root: bytes, token_ids: list[int], block_size: int) -> None:
    assert list(hash_blocks(root, token_ids, block_size)) == naive_hashes(root, token_ids, block_size)


@given(st.binary(max_size=16), st.binary(max_size=40))
def test_any_tenants_root_equals_the_naive_one(root: bytes, salt: bytes) -> None:
    assert tenant_root(root, salt) == naive_tenant_root(root, salt)


# --- no two meanings share a key --------------------------------------------------------------

NAMES = ("model_id", "revision", "kv_dtype", "adapter", "quantization")
_texts = st.text(st.sampled_from("ab\x00 01"), max_size=6)


def cuts(text: Sequence[Any]) -> list[tuple[Any, Any]]:
    """All ways to lay `text` into two neighbouring fields."""
    return [(text[:cut], text[cut:]) for cut in range(len(text) + 1)]


@given(_texts)
def test_a_byte_that_moves_to_the_next_field_makes_another_root(text: str) -> None:
    for left, right in (("model_id", "revision"), ("kv_dtype", "adapter"), ("adapter", "quantization")):
        roots = [root_with({left: first, right: second}) for first, second in cuts(text)]
        assert len(set(roots)) == len(roots)


@given(st.lists(_texts, min_size=2, max_size=4))
def test_a_value_that_looks_like_the_next_fields_tag_is_still_a_value(parts: list[str]) -> None:
    for left, right in (("model_id", "revision"), ("kv_dtype", "adapter"), ("adapter", "quantization")):
        tag = f"{chr(len(right))}\0\0\0{right}"
        fields = [(tag.join(first), tag.join(second)) for first, second in cuts(parts)[1:-1]]
        roots = [root_with({left: first, right: second}) for first, second in fields]
        assert len(set(roots)) == len(roots)


def root_with(texts: dict[str, str]) -> bytes:
    given_texts = dict(zip(NAMES, "mrkaq", strict=True)) | texts
    model = replace(MODEL, model_id=given_texts["model_id"], revision=given_texts["revision"])
    return model_root(model, **{name: given_texts[name] for name in NAMES[2:]})


@given(st.lists(_texts, min_size=5, max_size=5), st.lists(_texts, min_size=5, max_size=5))
def test_two_roots_are_equal_only_if_every_field_is(a: list[str], b: list[str]) -> None:
    first, second = (root_with(dict(zip(NAMES, texts, strict=True))) for texts in (a, b))
    assert (first == second) == (a == b)


@given(st.binary(max_size=8))
def test_a_byte_that_moves_between_root_and_salt_makes_another_tenant(data: bytes) -> None:
    roots = [tenant_root(root, salt) for root, salt in cuts(data)]
    assert len(set(roots)) == len(roots)


@given(st.binary(min_size=8, max_size=8).map(lambda data: data * 2))
def test_bytes_that_move_between_parent_and_tokens_make_another_block(data: bytes) -> None:
    hashes = [
        hash_block(data[:cut], struct.unpack(f"<{(16 - cut) // 4}i", data[cut:])) for cut in range(0, 17, 4)
    ]
    assert len(set(hashes)) == len(hashes)


def test_the_tags_keep_apart_what_holds_the_same_values() -> None:
    assert tenant_root(ROOT, b"\x01\x00\x00\x00") != hash_block(ROOT, [1])


@given(st.binary(max_size=8), st.binary(max_size=8))
def test_two_salts_never_share_a_block(a: bytes, b: bytes) -> None:
    first, second = (hash_blocks(tenant_root(ROOT, salt), range(8), 4) for salt in (a, b))
    assert set(first).isdisjoint(second) == (a != b)


# --- other weights under the same name --------------------------------------------------------


def write_weights(folder: Path, *, one_is_other: bool) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    if one_is_other:
        weights = tensors[min(tensors)]
        weights.flat[0] = np.nextafter(weights.flat[0], np.inf)
    save_file(tensors, path)


def test_a_prompt_is_not_cached_any_more_after_one_weight_was_swapped(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    write_weights(folder, one_is_other=False)
    before = model_root(resolve_model(str(folder)).config, kv_dtype="float32")
    write_weights(folder, one_is_other=False)
    again = model_root(resolve_model(str(folder)).config, kv_dtype="float32")
    write_weights(folder, one_is_other=True)
    after = model_root(resolve_model(str(folder)).config, kv_dtype="float32")
    adapted = model_root(resolve_model(str(folder)).config, kv_dtype="float32", adapter="lora")
    assert cached_tokens([before, again, after, adapted]) == [0, 8, 0, 0]


def cached_tokens(roots: Sequence[bytes]) -> list[int | None]:
    """Of one tenant's one prompt under each root in turn, in one and the same cache."""
    core = make_core({"*": (20,)})
    cached: list[int | None] = []
    for number, root in enumerate(roots):
        core.add(make_request(f"r{number}", range(9), hash_root=tenant_root(root, b"salt")))
        (outputs,) = run_to_end(core).values()
        cached.append(outputs[0].num_cached_tokens)
    return cached
