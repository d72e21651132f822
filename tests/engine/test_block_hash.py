"""Block hashes: the chain, and that no two meanings share a key."""

from hypothesis import given
from hypothesis import strategies as st

from engine.block_hash import hash_block, hash_blocks, tenant_root

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
